# Everything that differs between Flux lines, and nothing else. A line is 11 (0.11), 12 (0.12),
# 14 (0.13 and 0.14: Recur, immutable cells, 3-d arrays) or 16 (0.15 and 0.16: no Recur).

"The version of a loaded package, read from its Project.toml (`pkgversion` needs Julia 1.9)."
function package_version(pkg::Module)
    file = joinpath(dirname(dirname(pathof(pkg))), "Project.toml")
    for line in eachline(file)
        found = match(r"^\s*version\s*=\s*\"([^\"]+)\"", line)
        found === nothing || return VersionNumber(found.captures[1])
    end
    return error("no version in $file")
end

function line_of(version)
    version < v"0.12" && return 11
    version < v"0.13" && return 12
    version < v"0.15" && return 14
    return 16
end

const FLUX_VERSION = package_version(Flux)
const LINE = line_of(FLUX_VERSION)

"Does this line have the stateful `Recur` and `reset!`?"
const HAS_RECUR = LINE < 16

"Does `Recur` take a whole features x batch x time array?"
const HAS_ARRAY3D = LINE == 14

"Has this line RNN, LSTM and GRU layers over a whole sequence?"
const HAS_LAYER = LINE == 16

"Is a cell's initial state a vector that serves every sequence of the batch?"
const VECTOR_STATE = LINE == 11

"""
Does the mutable struct of the hand-written model hold a cell of Flux? So it does where that says
something about the line: 0.11's cells are mutable themselves. Elsewhere the cell is hand-written too.
"""
const STRUCT_HOLDS_FLUX_CELL = LINE < 14

"""
Is the cell that is stepped by hand the one inside a `Recur`, as 0.11 and 0.12's constructors give it?
The path matters: 0.11's explicit gradient does not reach a mutable cell inside a model.
"""
const CELL_INSIDE_RECUR = LINE < 14

"A cell of Flux from weights in canonical rows; `state` is its initial state, a tuple of one or two."
function flux_cell(mode, Wi, Wh, b, state)
    if LINE == 11
        mode == "lstm" && return Flux.LSTMCell(Wi, Wh, b, state[1], state[2])
        mode == "gru" && return Flux.GRUCell(Wi, Wh, b, state[1])
        return Flux.RNNCell(activation(mode), Wi, Wh, b, state[1])
    elseif LINE < 16
        mode == "lstm" && return Flux.LSTMCell(Wi, Wh, b, state)
        mode == "gru" && return Flux.GRUCell(Wi, Wh, b, state[1])
        return Flux.RNNCell(activation(mode), Wi, Wh, b, state[1])
    else
        mode == "lstm" && return Flux.LSTMCell(Wi, Wh, b)
        mode == "gru" && return Flux.GRUCell(Wi, Wh, b)
        return Flux.RNNCell(activation(mode), Wi, Wh, b)
    end
end

"One step of a cell of Flux: `(new state, output)`."
@static if LINE < 16
    flux_step(cell, state, x) = cell(state, x)
else
    function flux_step(cell, state, x)
        y, new = cell(x, state)
        return new, y
    end
end

"The initial state that lives in a cell of Flux, as the cell wants it; `nothing` where none does."
@static if LINE == 11
    cell_state(cell) = cell isa Flux.LSTMCell ? (cell.h, cell.c) : cell.h
elseif LINE < 16
    cell_state(cell) = cell.state0
else
    cell_state(cell) = nothing
end

"The gradient of that initial state `(dh, dc)` out of the cell's own gradient."
function cell_state_gradient(g)
    if LINE == 11
        return field(g, :h), field(g, :c)
    elseif LINE < 16
        return split_state(field(g, :state0))
    end
    return nothing, nothing
end

"The bias of a cell; its field is `bias` in the RNN and LSTM cells of 0.15 and later, `b` elsewhere."
bias_name(T::Type) = :bias in fieldnames(T) ? :bias : :b

"A sequence layer of Flux around a cell; `both` makes it return `(outputs, last state)`."
function flux_layer(cell, both)
    kind = Flux.RNN
    cell isa Flux.LSTMCell && (kind = Flux.LSTM)
    cell isa Flux.GRUCell && (kind = Flux.GRU)
    return both ? kind(cell; return_state = true) : kind(cell)
end

"Can a sequence layer return its last state?"
const LAYER_RETURNS_STATE = FLUX_VERSION >= v"0.16"

"What Zygote may hand back unevaluated (0.7 does, for implicit parameters), evaluated."
@static if isdefined(Zygote, :unthunk_tangent)
    evaluated(g) = Zygote.unthunk_tangent(g)
else
    evaluated(g) = g
end
