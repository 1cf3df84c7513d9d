"""
    FluxBridge

Runs one recurrent network through real Flux in one of the ways people apply it, and hands back
the outputs and gradients as plain arrays.

    FluxBridge.variants()                  the names that the loaded Flux line knows
    FluxBridge.whynot(; variant, mode)     "" or why this line cannot do it
    FluxBridge.gradients(; variant, mode, x, weight_ih, ...)
    FluxBridge.versions()

Shapes are canonical at this border (sequences time x batch x features, weights times column
vectors, states layers x batch x hidden); inside, arrays lie as Flux wants them (features x batch).
"""
module FluxBridge

using Flux
using Libdl
using LinearAlgebra: BLAS
using Zygote

include("lines.jl")
include("variants.jl")
include("models.jl")
include("globals.jl")
include("applications.jl")
include("gradients.jl")

end
