# The entry point: canonical arrays in, a fresh model, one gradient call, canonical arrays out.

# ---- arrays of Python may be views of foreign memory; every run works on its own copies

layers(arrays...) = Any[Array(a) for a in arrays]

"(time, batch, features) to a vector of features x batch matrices"
function to_steps(T, x)
    return [Matrix{T}(permutedims(x[t, :, :])) for t in axes(x, 1)]
end

"Matrices as one array, the third index counting them; a splatted `cat` is compiled anew for every count."
function stacked(matrices)
    T = reduce(promote_type, map(eltype, matrices))
    whole = Array{T}(undef, size(matrices[1])..., length(matrices))
    for (i, matrix) in enumerate(matrices)
        whole[:, :, i] = matrix
    end
    return whole
end

"a vector of features x batch matrices to (time, batch, features)"
from_steps(steps) = permutedims(stacked(steps), (3, 2, 1))

"(layers, batch, hidden) to a vector of hidden x batch matrices"
to_layers(T, state) = [Matrix{T}(permutedims(state[l, :, :])) for l in axes(state, 1)]
to_layers(T, ::Nothing) = Matrix{T}[]

"The gradient of a sequence; a step that Zygote left out while others got one is a zero there."
function sequence_gradient(g::AbstractVector, like)
    found = map(evaluated, g)
    all(step -> step === nothing, found) && return nothing
    return from_steps(map((step, x) -> step === nothing ? zero(x) : step, found, like))
end

sequence_gradient(g::AbstractArray{<:Number, 3}, like) = permutedims(g, (3, 2, 1))
sequence_gradient(::Nothing, like) = nothing

# ---- reading what Zygote returned

unref(g) = g isa Base.RefValue ? unref(g[]) : evaluated(g)

function field(g, name)
    g = unref(g)
    g === nothing && return nothing
    return hasproperty(g, name) ? unref(getproperty(g, name)) : nothing
end

function item(g, i)
    g = unref(g)
    return g === nothing ? nothing : unref(g[i])
end

split_state(g) = g isa Tuple ? (unref(g[1]), unref(g[2])) : (g, nothing)

plain(::Nothing) = nothing
plain(a) = Array(evaluated(a))

"States per layer, hidden x batch (or a vector summed over the batch), to (layers, batch, hidden)."
function state_gradient(per_layer)
    all(g -> g === nothing, per_layer) && return nothing
    any(g -> g === nothing, per_layer) && return Any[turned(g) for g in per_layer]
    if per_layer[1] isa AbstractVector
        return permutedims(reduce(hcat, per_layer))
    end
    return permutedims(stacked(per_layer), (3, 2, 1))
end

turned(::Nothing) = nothing
turned(g::AbstractVector) = Array(g)
turned(g) = permutedims(g)

# ---- one run

"All that a run needs, on arrays of its own; `states` holds (h,) or (h, c) per layer."
struct Run
    mode::String
    Wi::Vector
    Wh::Vector
    b::Vector
    states::Vector
    xs::Vector
    loss::Loss
end

"Initial states per layer; a vector serves every sequence of the batch."
function initial_states(T, h0, c0, vector)
    start(m) = vector ? m[:, 1] : m
    h = map(start, to_layers(T, h0))
    c = map(start, to_layers(T, c0))
    isempty(c) && return [(h[l],) for l in eachindex(h)]
    return [(h[l], c[l]) for l in eachindex(h)]
end

"A run on fresh copies of the same arrays."
function fresh(r::Run)
    return Run(
        r.mode,
        deepcopy(r.Wi),
        deepcopy(r.Wh),
        deepcopy(r.b),
        deepcopy(r.states),
        deepcopy(r.xs),
        r.loss,
    )
end

bare(state::Tuple) = length(state) == 1 ? state[1] : state

flux_cells(r) = map(
    (Wi, Wh, b, s) -> flux_cell(r.mode, Wi, Wh, b, s),
    r.Wi,
    r.Wh,
    r.b,
    r.states,
)
hand_cells(r) = map((Wi, Wh, b) -> hand_cell(r.mode, Wi, Wh, b), r.Wi, r.Wh, r.b)

"One cell as it is, several as a stack, with the state that belongs to it."
function one_or_stack(cells, states)
    length(cells) == 1 && return cells[1], bare(states[1])
    return Stack(Tuple(cells)), Tuple(map(bare, states))
end

function stateful_model(v::Variant, r::Run)
    if v.model == :closure
        cells = STRUCT_HOLDS_FLUX_CELL ? flux_cells(r) : hand_cells(r)
        cell, state = one_or_stack(cells, r.states)
        return Stateful(cell, state)
    end
    recurs = map(Flux.Recur, flux_cells(r))
    v.model == :chain && return Flux.Chain(recurs...)
    return length(recurs) == 1 ? recurs[1] : Tuple(recurs)
end

@static if HAS_RECUR
    reset_model!(m) = Flux.reset!(m)
    reset_model!(ms::Tuple) = foreach(Flux.reset!, ms)
end

start_of(::Val{:inside}, m) = reset_model!(m)
start_of(::Val, m) = nothing

function total_of_model(reset::Val, how::Val, m, xs, loss)
    start_of(reset, m)
    so_far = total(how, m, xs, loss)
    return reads_state(loss) ? so_far + score_state(last_state(m), loss) : so_far
end

function total_of_global_model(reset::Val, how::Val, xs, loss)
    so_far = global_total(how, xs, loss)
    return reads_state(loss) ?
        so_far + score_state(last_state(Globals.model), loss) :
        so_far
end

function total_of_global_function(how::Val, f, xs, loss)
    so_far = total(how, f, xs, loss)
    return reads_state(loss) ? so_far + score_state(Globals.get_state(), loss) : so_far
end

"The parameters of an implicit gradient: weights, and the initial state unless it is left out."
function parameters(v::Variant, r::Run)
    arrays = Any[r.Wi..., r.Wh..., r.b...]
    v.weights || foreach(state -> append!(arrays, state), r.states)
    return Zygote.Params(arrays)
end

function implicit(v::Variant, r::Run, f)
    found = Zygote.gradient(f, parameters(v, r)).grads
    of(a) = evaluated(get(found, a, nothing))
    out = Dict{String, Any}()
    out["dWi"] = Any[plain(of(a)) for a in r.Wi]
    out["dWh"] = Any[plain(of(a)) for a in r.Wh]
    out["db"] = Any[plain(of(a)) for a in r.b]
    if !v.weights
        out["dh0"] = state_gradient([of(state[1]) for state in r.states])
        r.mode == "lstm" &&
            (out["dc0"] = state_gradient([of(state[2]) for state in r.states]))
    end
    return out
end

"The gradient of `f(args..., xs)` for `args`, and for `xs` too if it is wanted."
function explicit(f, args, xs, want_x)
    want_x && return Zygote.gradient(f, args..., xs)
    return (Zygote.gradient((a...) -> f(a..., xs), args...)..., nothing)
end

function weight_gradients!(out, cells, gradients)
    pick(names) = Any[plain(field(g, names(c))) for (c, g) in zip(cells, gradients)]
    out["dWi"] = pick(c -> :Wi)
    out["dWh"] = pick(c -> :Wh)
    out["db"] = pick(c -> bias_name(typeof(c)))
    return out
end

function initial_gradients!(out, mode, pairs, names)
    out[names[1]] = state_gradient([p[1] for p in pairs])
    mode == "lstm" && (out[names[2]] = state_gradient([p[2] for p in pairs]))
    return out
end

per_layer(g, n) = n == 1 ? Any[g] : Any[item(g, l) for l in 1:n]
per_cell(g, n) = n == 1 ? Any[unref(g)] : Any[item(field(g, :cells), l) for l in 1:n]

"The sequence as the application wants it: steps, features x batch x time, or features x time x batch."
function sequence(v::Variant, xs)
    v.application == :array3d && return stacked(xs)
    v.application == :sequence && return permutedims(stacked(xs), (1, 3, 2))
    return xs
end

function with_dx!(out, v, g, r, want_x)
    want_x || return out
    g = unref(g)
    if v.application == :sequence && g !== nothing
        g = permutedims(g, (1, 3, 2))
    end
    out["dx"] = sequence_gradient(g, r.xs)
    return out
end

# ---- by kind of model

"Recur, Chain, and the hand-written mutable struct that is passed in."
function run_stateful(v::Variant, r::Run, want_x)
    m = stateful_model(v, r)
    how, reset = Val(v.application), Val(v.reset)
    xs = sequence(v, r.xs)
    started = nothing
    if v.reset == :stale
        apply(how, m, xs)
        started = deepcopy(last_state(m))
    elseif v.model != :closure
        reset_model!(m)
    end
    if v.holder == :global
        Globals.set_model!(m)
        out = implicit(v, r, () -> total_of_global_model(reset, how, xs, r.loss))
    elseif v.api == :implicit
        out = implicit(v, r, () -> total_of_model(reset, how, m, xs, r.loss))
    else
        f = (model, seq) -> total_of_model(reset, how, model, seq, r.loss)
        g, gx = explicit(f, (m,), xs, want_x)
        out = stateful_gradients(v, r, m, g)
        with_dx!(out, v, gx, r, want_x)
    end
    started === nothing || start_of_run!(out, r, started)
    return out
end

function stateful_gradients(v, r, m, g)
    n = length(r.Wi)
    out = Dict{String, Any}()
    if v.model == :closure
        cells = n == 1 ? Any[m.cell] : Any[m.cell.cells...]
        gcells = per_cell(field(g, :cell), n)
        gstates = per_layer(field(g, :state), n)
    else
        chained = v.model == :chain
        models = chained ? m.layers : m isa Tuple ? m : (m,)
        gmodels = chained ? Any[item(field(g, :layers), l) for l in 1:n] : per_layer(g, n)
        cells = Any[model.cell for model in models]
        gcells = Any[field(gm, :cell) for gm in gmodels]
        gstates = Any[field(gm, :state) for gm in gmodels]
    end
    weight_gradients!(out, cells, gcells)
    in_state = [split_state(unref(s)) for s in gstates]
    if v.model == :closure && !STRUCT_HOLDS_FLUX_CELL
        return initial_gradients!(out, r.mode, in_state, ("dh0", "dc0"))
    end
    initial_gradients!(
        out,
        r.mode,
        [cell_state_gradient(c) for c in gcells],
        ("dh0", "dc0"),
    )
    return initial_gradients!(out, r.mode, in_state, ("dstate_h", "dstate_c"))
end

function start_of_run!(out, r, state)
    states = length(r.Wi) == 1 ? (state,) : state
    out["start_h"] = state_gradient([hidden_of(s) for s in states])
    r.mode == "lstm" && (out["start_c"] = state_gradient([memory_of(s) for s in states]))
    return out
end

"The hand-written model that makes its state inside the loss: captured, Ref or struct."
function run_held(v::Variant, r::Run, want_x)
    holder, how = Val(v.holder), Val(v.application)
    cells = hand_cells(r)
    cell, state = one_or_stack(cells, r.states)
    if v.api == :implicit
        return implicit(v, r, () -> total_of_held(holder, how, cell, state, r.xs, r.loss))
    end
    f = (c, s, xs) -> total_of_held(holder, how, c, s, xs, r.loss)
    g, gs, gx = explicit(f, (cell, state), r.xs, want_x)
    return cell_results(v, r, cells, g, gs, gx, want_x)
end

function cell_results(v, r, cells, g, gs, gx, want_x)
    n = length(cells)
    out = weight_gradients!(Dict{String, Any}(), cells, per_cell(g, n))
    pairs = [split_state(unref(s)) for s in per_layer(unref(gs), n)]
    initial_gradients!(out, r.mode, pairs, ("dh0", "dc0"))
    return with_dx!(out, v, gx, r, want_x)
end

"The question's own code: a global function over global weights and a global state."
function run_global_function(v::Variant, r::Run)
    state = r.states[1]
    act = r.mode in ("lstm", "gru") ? identity : activation(r.mode)
    Globals.set_weights!(act, r.Wi[1], r.Wh[1], r.b[1])
    Globals.set_state!(state[1], r.mode == "lstm" ? state[2] : nothing)
    f = global_function(r.mode)
    how = Val(v.application)
    return implicit(v, r, () -> total_of_global_function(how, f, r.xs, r.loss))
end

function global_function(mode)
    mode == "lstm" && return Globals.step_lstm
    mode == "gru" && return Globals.step_gru
    return Globals.step_rnn
end

"Explicit state: the cell is stepped in a loop and nothing is mutated."
function run_cell(v::Variant, r::Run, want_x)
    cells = flux_cells(r)
    n = length(cells)
    if LINE >= 16
        cell, state = one_or_stack(cells, r.states)
        v.api == :implicit &&
            return implicit(v, r, () -> total_of_cell(cell, state, r.xs, r.loss))
        f = (c, s, xs) -> total_of_cell(c, s, xs, r.loss)
        g, gs, gx = explicit(f, (cell, state), r.xs, want_x)
        return cell_results(v, r, cells, g, gs, gx, want_x)
    end
    models = Tuple(CELL_INSIDE_RECUR ? map(Flux.Recur, cells) : cells)
    model = n == 1 ? models[1] : models
    v.api == :implicit && return implicit(v, r, () -> total_of_cells(model, r.xs, r.loss))
    g, gx = explicit((m, xs) -> total_of_cells(m, xs, r.loss), (model,), r.xs, want_x)
    gmodels = per_layer(unref(g), n)
    gcells = CELL_INSIDE_RECUR ?
        Any[field(gm, :cell) for gm in gmodels] :
        map(unref, gmodels)
    out = weight_gradients!(Dict{String, Any}(), cells, gcells)
    initial_gradients!(
        out,
        r.mode,
        [cell_state_gradient(c) for c in gcells],
        ("dh0", "dc0"),
    )
    if CELL_INSIDE_RECUR
        in_state = [split_state(field(gm, :state)) for gm in gmodels]
        initial_gradients!(out, r.mode, in_state, ("dstate_h", "dstate_c"))
    end
    return with_dx!(out, v, gx, r, want_x)
end

cell_of(m) = CELL_INSIDE_RECUR ? m.cell : m

function total_of_cells(m, xs, loss)
    cell = cell_of(m)
    return total_of_cell(cell, cell_state(cell), xs, loss)
end

function total_of_cells(ms::Tuple, xs, loss)
    cells = map(cell_of, ms)
    return total_of_cell(Stack(cells), map(cell_state, cells), xs, loss)
end

"A layer of Flux over the whole sequence, the next one over its outputs."
function run_layer(v::Variant, r::Run, want_x)
    cells = flux_cells(r)
    both = reads_state(r.loss)
    models = Tuple(flux_layer(c, both) for c in cells)
    states = Tuple(map(bare, r.states))
    xs = sequence(v, r.xs)
    if v.api == :implicit
        return implicit(v, r, () -> total_of_layers(models, states, xs, r.loss))
    end
    g, gs, gx = explicit(
        (m, s, seq) -> total_of_layers(m, s, seq, r.loss),
        (models, states),
        xs,
        want_x,
    )
    gcells = Any[field(item(g, l), :cell) for l in eachindex(cells)]
    out = weight_gradients!(Dict{String, Any}(), cells, gcells)
    pairs = [split_state(unref(item(gs, l))) for l in eachindex(cells)]
    initial_gradients!(out, r.mode, pairs, ("dh0", "dc0"))
    return with_dx!(out, v, gx, r, want_x)
end

function through_layers(models, states, xs, both)
    y, last = both ? models[1](xs, states[1]) : (models[1](xs, states[1]), nothing)
    length(models) == 1 && return y, (last,)
    top, others = through_layers(Base.tail(models), Base.tail(states), y, both)
    return top, (last, others...)
end

function total_of_layers(models, states, xs, loss)
    both = reads_state(loss)
    ys, last = through_layers(models, states, xs, both)
    so_far = score_array(permutedims(ys, (1, 3, 2)), loss)
    both || return so_far
    return so_far + score_state(length(last) == 1 ? last[1] : last, loss)
end

# ---- the forward pass, in a fresh state, applied in the same way

"The outputs; what a stale run started from goes into `out`."
function outputs!(out, v::Variant, r::Run)
    if v.model == :layer
        models = Tuple(flux_layer(c, false) for c in flux_cells(r))
        ys, _ = through_layers(models, Tuple(map(bare, r.states)), sequence(v, r.xs), false)
        return permutedims(ys, (2, 3, 1))
    elseif v.model == :cell
        cell, state = one_or_stack(flux_cells(r), r.states)
        return from_steps(outputs_of_cell(cell, state, r.xs))
    elseif v.model == :closure && v.holder != :struct
        cell, state = one_or_stack(hand_cells(r), r.states)
        return from_steps(outputs_of_cell(cell, state, r.xs))
    end
    m = stateful_model(v, r)
    how = Val(v.application)
    xs = sequence(v, r.xs)
    if v.reset == :stale
        apply(how, m, xs)
        start_of_run!(out, r, last_state(m))
    end
    ys = apply(how, m, xs)
    return v.application == :array3d ? permutedims(ys, (3, 2, 1)) : from_steps(ys)
end

"The gradients of one run, by kind of model."
function run_variant(v::Variant, r::Run, want_x)
    if v.model == :closure && v.holder == :global
        return run_global_function(v, r)
    elseif v.model == :closure && v.holder != :struct
        return run_held(v, r, want_x)
    elseif v.model == :cell
        return run_cell(v, r, want_x)
    elseif v.model == :layer
        return run_layer(v, r, want_x)
    end
    return run_stateful(v, r, want_x)
end

"""
    gradients(; variant, mode, x, weight_ih, weight_hh, bias, h0, c0=nothing, head,
              head_hn=nothing, head_cn=nothing, loss_step=nothing, want_x=true, want_y=true,
              want_gradients=true)

One fresh model, one gradient call. `x` and `head` are (time, batch, features), `weight_ih`,
`weight_hh` and `bias` hold one array per layer (Flux's single bias), `h0` and `c0` are
(layers, batch, hidden). With `loss_step = s` the loss is `sum(head[s] .* y[s])` alone.

The result has `y`; `dWi`, `dWh`, `db` per layer; `dh0`, `dc0`, `dx` and the gradient found in the
model's `state` field, `dstate_h`, `dstate_c`, as far as this way of asking yields them. `nothing` is
what Zygote returned; a key that is absent was never asked for. Stale runs say in `start_h`,
`start_c` what they started from. Where 0.11's vector state makes a state's gradient a sum over the
batch, it is (layers, hidden) and `batch_summed` is true. Where Zygote raises, the outputs are still to
be had with `want_gradients=false`.
"""
function gradients(;
    variant,
    mode,
    x,
    weight_ih,
    weight_hh,
    bias,
    h0,
    c0 = nothing,
    head,
    head_hn = nothing,
    head_cn = nothing,
    loss_step = nothing,
    want_x = true,
    want_y = true,
    want_gradients = true,
)
    n = size(h0, 1)
    h0, c0 = Array(h0), mode == "lstm" ? Array(c0) : nothing
    if loss_step !== nothing
        head_hn, head_cn = nothing, nothing
    end
    final = !(head_hn === nothing && head_cn === nothing)
    reason = whynot(;
        variant = variant,
        mode = mode,
        layers = n,
        h0 = h0,
        c0 = c0,
        final = final,
    )
    isempty(reason) || error(reason)
    v = VARIANTS[variant]
    T = eltype(x)
    step = loss_step === nothing ? 0 : Int(loss_step)
    heads = to_steps(T, head)
    loss = Loss(heads, stacked(heads), step, to_layers(T, head_hn), to_layers(T, head_cn))
    given = Run(
        mode,
        [Matrix{T}(w) for w in weight_ih],
        [Matrix{T}(w) for w in weight_hh],
        [Vector{T}(w) for w in bias],
        initial_states(T, h0, c0, vector_state(v)),
        to_steps(T, x),
        loss,
    )
    out = want_gradients ? run_variant(v, fresh(given), want_x) : Dict{String, Any}()
    summed(key) = get(out, key, nothing) isa Matrix
    any(summed, ("dh0", "dc0", "dstate_h", "dstate_c")) && (out["batch_summed"] = true)
    want_y && (out["y"] = outputs!(out, v, fresh(given)))
    return out
end

"What the linear algebra underneath says of itself; `BLAS.get_config` came with Julia 1.7."
function blas_version()
    isdefined(BLAS, :get_config) || return BLAS.openblas_get_config()
    library = first(BLAS.get_config().loaded_libs).libname
    for name in (:openblas_get_config64_, :openblas_get_config)
        address = Libdl.dlsym(Libdl.dlopen(library), name; throw_error = false)
        address === nothing || return unsafe_string(ccall(address, Cstring, ()))
    end
    return basename(library)
end

"What ran: Flux, Zygote, Julia, and the BLAS underneath."
function versions()
    return Dict{String, String}(
        "flux" => string(FLUX_VERSION),
        "zygote" => string(package_version(Zygote)),
        "julia" => string(VERSION),
        "blas" => strip(blas_version()),
    )
end

"""
From now on interpret what is not compiled yet of this package, Zygote, its rules and Base. Where nearly
every question meets new types this costs less than compiling; the values stay the same. Julia before
1.6 cannot, and goes on compiling.
"""
function interpret()
    VERSION < v"1.6" && return nothing
    for m in (@__MODULE__, Zygote, Zygote.ChainRules, Zygote.ChainRulesCore, Base)
        # what `Base.Experimental.@compiler_options compile = min` stands for inside a module
        Core.eval(m, Expr(:meta, :compile, 3))
    end
    return nothing
end

const POISON = Ref(12345.678)

"""
Hand used memory back to Julia's allocator, filled with values that a kernel would show if it read
before it wrote; with others each time, since equal garbage in two calls would look repeatable.
"""
function disturb()
    POISON[] += 1
    for power in 3:8
        fill(POISON[], 4^power)
        fill(Float32(POISON[]), 4^power)
    end
    GC.gc(false)
    return nothing
end
