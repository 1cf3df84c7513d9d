# Models with state: Flux's own, and the ones that people write by hand.

function activation(mode)
    mode == "rnn_tanh" && return tanh
    mode == "rnn_relu" && return Flux.relu
    mode == "rnn_identity" && return identity
    return error("no activation belongs to mode $mode")
end

# ---- hand-written cells: (state, x) -> (new state, output)

struct HandRNN{F, A, V}
    act::F
    Wi::A
    Wh::A
    b::V
end

struct HandLSTM{A, V}
    Wi::A
    Wh::A
    b::V
end

struct HandGRU{A, V}
    Wi::A
    Wh::A
    b::V
end

sigmoid(x) = Flux.sigmoid(x)

"The rows of one gate out of a stack of gates, each `n` rows high."
rows(a::AbstractMatrix, n, i) = a[((i - 1) * n + 1):(i * n), :]
rows(a::AbstractVector, n, i) = a[((i - 1) * n + 1):(i * n)]

function lstm_step(Wi, Wh, b, h, c, x)
    n = size(Wh, 2)
    g = Wi * x .+ Wh * h .+ b
    kept = sigmoid.(rows(g, n, 2)) .* c
    new_c = kept .+ sigmoid.(rows(g, n, 1)) .* tanh.(rows(g, n, 3))
    new_h = sigmoid.(rows(g, n, 4)) .* tanh.(new_c)
    return new_h, new_c
end

function gru_step(Wi, Wh, b, h, x)
    n = size(Wh, 2)
    gx, gh = Wi * x .+ b, Wh * h
    r = sigmoid.(rows(gx, n, 1) .+ rows(gh, n, 1))
    z = sigmoid.(rows(gx, n, 2) .+ rows(gh, n, 2))
    fresh = tanh.(rows(gx, n, 3) .+ r .* rows(gh, n, 3))
    return (1 .- z) .* fresh .+ z .* h
end

function one_step(cell::HandRNN, h, x)
    new = cell.act.(cell.Wi * x .+ cell.Wh * h .+ cell.b)
    return new, new
end

function one_step(cell::HandLSTM, state, x)
    h, c = lstm_step(cell.Wi, cell.Wh, cell.b, state[1], state[2], x)
    return (h, c), h
end

function one_step(cell::HandGRU, h, x)
    new = gru_step(cell.Wi, cell.Wh, cell.b, h, x)
    return new, new
end

one_step(cell, state, x) = flux_step(cell, state, x)

# Several layers are a tuple of cells with a tuple of states.
struct Stack{C <: Tuple}
    cells::C
end

function one_step(stack::Stack, states, x)
    return through(stack.cells, states, x)
end

through(cells::Tuple{}, states::Tuple{}, x) = (), x

function through(cells::Tuple, states::Tuple, x)
    state, y = one_step(cells[1], states[1], x)
    others, top = through(Base.tail(cells), Base.tail(states), y)
    return (state, others...), top
end

function hand_cell(mode, Wi, Wh, b)
    mode == "lstm" && return HandLSTM(Wi, Wh, b)
    mode == "gru" && return HandGRU(Wi, Wh, b)
    return HandRNN(activation(mode), Wi, Wh, b)
end

# ---- the hand-written stateful model

"A cell and its state, the way a hand-written model is usually kept: a mutable struct, called."
mutable struct Stateful{C}
    cell::C
    state
end

function (m::Stateful)(x)
    m.state, y = one_step(m.cell, m.state, x)
    return y
end

# ---- the last state of a model that has one

last_state(m::Stateful) = m.state

@static if HAS_RECUR
    last_state(m::Flux.Recur) = m.state
    last_state(m::Flux.Chain) = last_state(Tuple(m.layers))
    last_state(m::Tuple{Any}) = last_state(m[1])
    last_state(m::Tuple) = map(last_state, m)
end

hidden_of(state) = state isa Tuple ? state[1] : state
memory_of(state) = state isa Tuple ? state[2] : nothing
