# The names of the ways to apply a model, and which of them the loaded line can do.

"""
One way of asking for gradients. `api` is `:explicit` or `:implicit`; `weights` leaves the initial
state out of the parameters; `reset` is `:before`, `:inside` or `:stale`; `holder` says where a
hand-written model keeps its state, or `:global`.
"""
struct Variant
    model::Symbol
    application::Symbol
    api::Symbol
    weights::Bool
    reset::Symbol
    holder::Symbol
end

function Base.string(v::Variant)
    parts = [string(v.model), string(v.application), string(v.api)]
    v.weights && push!(parts, "weights")
    v.reset == :before || push!(parts, string(v.reset))
    v.holder == :none || push!(parts, replace(string(v.holder), '_' => '-'))
    return join(parts, '-')
end

const STEPWISE = (:broadcast, :comprehension, :map, :for)
const APIS = ((:explicit, false), (:implicit, false), (:implicit, true))
const KNOWN_MODES = ("rnn_tanh", "rnn_relu", "rnn_identity", "lstm", "gru")

"Every variant of any line, in a fixed order."
function every_variant()
    all = Variant[]
    for model in (:recur, :chain), application in (STEPWISE..., :array3d)
        for (api, weights) in APIS, reset in (:before, :inside, :stale)
            push!(all, Variant(model, application, api, weights, reset, :none))
        end
        application == :array3d && continue
        push!(all, Variant(model, application, :implicit, false, :before, :global))
        push!(all, Variant(model, application, :implicit, true, :before, :global))
    end
    for application in STEPWISE
        for holder in (:struct, :local_struct, :ref, :captured)
            push!(all, Variant(:closure, application, :explicit, false, :before, holder))
        end
        push!(all, Variant(:closure, application, :implicit, false, :before, :struct))
        for holder in (:struct, :local_struct, :ref, :captured, :global)
            push!(all, Variant(:closure, application, :implicit, true, :before, holder))
        end
    end
    for (model, application) in ((:cell, :for), (:layer, :sequence)), (api, weights) in APIS
        push!(all, Variant(model, application, api, weights, :before, :none))
    end
    return all
end

const VARIANTS = Dict(string(v) => v for v in every_variant())

"Why the loaded line does not have this variant at all; empty when it does."
function missing_in_line(v::Variant)
    if v.model in (:recur, :chain) && !HAS_RECUR
        return "Flux $FLUX_VERSION has no Recur"
    elseif v.application == :array3d && !HAS_ARRAY3D
        return "Recur of Flux $FLUX_VERSION does not take a 3-d array"
    elseif v.model == :layer && !HAS_LAYER
        return "Flux $FLUX_VERSION has no layer over a whole sequence"
    end
    return ""
end

"The names of every variant that the loaded line has, in a fixed order."
variants() = String[string(v) for v in every_variant() if isempty(missing_in_line(v))]

"Does this variant keep its initial state in a cell of 0.11, one vector for all of the batch?"
function vector_state(v::Variant)
    VECTOR_STATE || return false
    return v.model != :closure || v.holder == :struct
end

"Is a state `(layers, batch, hidden)` the same for every sequence of the batch?"
same_for_batch(state) = all(state[:, i, :] == state[:, 1, :] for i in axes(state, 2))

"""
    whynot(; variant, mode, layers=1, bidirectional=false, h0=nothing, c0=nothing, final=false)

An empty string when the loaded line can run this, else one line that says why not. `final` says
that the loss also reads the last state.
"""
function whynot(;
    variant,
    mode,
    layers = 1,
    bidirectional = false,
    h0 = nothing,
    c0 = nothing,
    final = false,
)
    haskey(VARIANTS, variant) || return "no variant is called $variant"
    mode in KNOWN_MODES || return "no mode is called $mode"
    v = VARIANTS[variant]
    reason = missing_in_line(v)
    isempty(reason) || return reason
    bidirectional && return "Flux $FLUX_VERSION has no bidirectional layer"
    if v.holder == :global && v.model != :chain && layers > 1
        return "one global is one layer here; several go into a Chain (chain-...-global)"
    elseif v.model == :layer && final && !LAYER_RETURNS_STATE
        return "a layer of Flux $FLUX_VERSION does not return its last state"
    elseif vector_state(v)
        for (name, state) in (("h0", h0), ("c0", c0))
            state === nothing && continue
            same_for_batch(state) && continue
            return "Flux $FLUX_VERSION has one initial state per cell, and $name differs within the batch"
        end
    end
    return ""
end
