using FluxBridge
using Test

include("truth.jl")

const LINE = FluxBridge.LINE
has(variant) = variant in FluxBridge.variants()

@testset "FluxBridge on Flux $(FluxBridge.FLUX_VERSION)" begin
    include("names.jl")
    include("published.jl")
    include("right.jl")
end
