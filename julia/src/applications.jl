# The ways to apply a model to a sequence, and the loss that is read off the outputs.

"""
What the loss reads: `heads[t] .* y[t]` summed over every output, or output `step` only when it is
not 0, and the same for the last states, one `hn[l]` (and `cn[l]`) per layer, where they are given.
`whole` holds the heads once more, features x batch x time.
"""
struct Loss{T, M <: AbstractMatrix{T}}
    heads::Vector{M}
    whole::Array{T, 3}
    step::Int
    hn::Vector{M}
    cn::Vector{M}
end

reads_state(loss) = !(isempty(loss.hn) && isempty(loss.cn))

weighed(head, y) = sum(head .* y)

function weighed_at(loss, t, y)
    loss.step == 0 || loss.step == t || return zero(eltype(y))
    return weighed(loss.heads[t], y)
end

"The loss of a vector of outputs."
function score(ys::AbstractVector, loss)
    loss.step == 0 || return weighed(loss.heads[loss.step], ys[loss.step])
    total = weighed(loss.heads[1], ys[1])
    for t in 2:length(ys)
        total += weighed(loss.heads[t], ys[t])
    end
    return total
end

"The loss of the last state of every layer."
function score_state(state, loss)
    layers = max(length(loss.hn), length(loss.cn))
    states = layers == 1 ? (state,) : state
    total = zero(eltype(loss.heads[1]))
    for l in eachindex(loss.hn)
        total += weighed(loss.hn[l], hidden_of(states[l]))
    end
    for l in eachindex(loss.cn)
        total += weighed(loss.cn[l], memory_of(states[l]))
    end
    return total
end

# ---- application to a vector of inputs, one output each

steps(::Val{:broadcast}, f, xs) = f.(xs)
steps(::Val{:comprehension}, f, xs) = [f(x) for x in xs]
steps(::Val{:map}, f, xs) = map(f, xs)
steps(::Val{:array3d}, f, xs) = f(xs)

function steps(::Val{:for}, f, xs)
    ys = [f(xs[1])]
    for t in 2:length(xs)
        ys = vcat(ys, [f(xs[t])])
    end
    return ys
end

apply(how::Val, f, xs) = steps(how, f, xs)

# Several bare Recurs, none of them in a Chain: the whole sequence through one, then the next.
apply(how::Val, fs::Tuple{Any}, xs) = steps(how, fs[1], xs)
apply(how::Val, fs::Tuple, xs) = apply(how, Base.tail(fs), steps(how, fs[1], xs))

# ---- loss of an application

total(how::Val, f, xs, loss) = score(apply(how, f, xs), loss)

"A loop needs no list of outputs: the loss grows as it goes."
function total(::Val{:for}, f, xs, loss)
    sum_so_far = weighed_at(loss, 1, f(xs[1]))
    for t in 2:length(xs)
        sum_so_far += weighed_at(loss, t, f(xs[t]))
    end
    return sum_so_far
end

function total(how::Val{:for}, fs::Tuple, xs, loss)
    length(fs) == 1 && return total(how, fs[1], xs, loss)
    return total(how, Base.tail(fs), steps(how, fs[1], xs), loss)
end

function total(how::Val{:array3d}, f, xs, loss)
    return score_array(apply(how, f, xs), loss)
end

"The loss of a features x batch x time array."
function score_array(ys, loss)
    loss.step == 0 || return weighed(loss.heads[loss.step], ys[:, :, loss.step])
    return weighed(loss.whole, ys)
end

# ---- a model of Flux that is a global

global_total(::Val{:broadcast}, xs, loss) = score(Globals.model_broadcast(xs), loss)
global_total(::Val{:comprehension}, xs, loss) = score(Globals.model_comprehension(xs), loss)
global_total(::Val{:map}, xs, loss) = score(Globals.model_map(xs), loss)
global_total(how::Val{:for}, xs, loss) = total(how, Globals.call_model, xs, loss)

# ---- explicit state, nothing mutated

function total_of_cell(cell, state, xs, loss)
    state, y = one_step(cell, state, xs[1])
    sum_so_far = weighed_at(loss, 1, y)
    for t in 2:length(xs)
        state, y = one_step(cell, state, xs[t])
        sum_so_far += weighed_at(loss, t, y)
    end
    reads_state(loss) && (sum_so_far += score_state(state, loss))
    return sum_so_far
end

function outputs_of_cell(cell, state, xs)
    ys = Any[]
    for x in xs
        state, y = one_step(cell, state, x)
        push!(ys, y)
    end
    return ys
end

# ---- the hand-written model, by the way it holds its state: (callable, how to read the state)

# A local variable of its own: were the argument itself reassigned, Julia would box it another way.
function held(::Val{:captured}, cell, state)
    now = state
    f = function (x)
        now, y = one_step(cell, now, x)
        return y
    end
    return f, () -> now
end

function held(::Val{:ref}, cell, state)
    ref = Ref{Any}(state)
    f = function (x)
        new, y = one_step(cell, ref[], x)
        ref[] = new
        return y
    end
    return f, () -> ref[]
end

function held(::Val{:local_struct}, cell, state)
    m = Stateful(cell, state)
    return m, () -> m.state
end

function total_of_held(holder::Val, how::Val, cell, state, xs, loss)
    f, now = held(holder, cell, state)
    so_far = total(how, f, xs, loss)
    return reads_state(loss) ? so_far + score_state(now(), loss) : so_far
end
