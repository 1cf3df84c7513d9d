@testset "names and reasons" begin
    names = FluxBridge.variants()
    @test allunique(names)
    @test "cell-for-explicit" in names
    @test "closure-map-implicit-weights-global" in names
    @test "closure-broadcast-explicit-local-struct" in names
    @test has("recur-broadcast-implicit-weights-inside") == (LINE < 16)
    @test has("chain-for-explicit-stale") == (LINE < 16)
    @test has("recur-array3d-explicit") == (LINE == 14)
    @test has("layer-sequence-explicit") == (LINE == 16)
    @test all(isempty(FluxBridge.whynot(; variant = v, mode = "lstm")) for v in names)

    why(; more...) = FluxBridge.whynot(;
        variant = "cell-for-explicit",
        mode = "gru",
        more...,
    )
    @test isempty(why())
    @test occursin("bidirectional", why(; bidirectional = true))
    @test occursin("recur-sideways", why(; variant = "recur-sideways"))
    @test occursin("rnn_sine", why(; mode = "rnn_sine"))
    @test isempty(why(; layers = 3))
    @test occursin(
        "one layer",
        why(; variant = "closure-for-implicit-weights-global", layers = 2),
    )

    differs = reshape([0.0, 1.0], 1, 2, 1)
    @test isempty(why(; h0 = differs)) == (LINE > 11)
    @test isempty(why(; h0 = zero(differs), c0 = differs)) == (LINE > 11)
    @test isempty(why(; variant = "closure-for-explicit-ref", h0 = differs))
    @test isempty(why(; variant = "recur-map-implicit")) == (LINE < 16)
    @test isempty(why(; variant = "recur-array3d-implicit")) == (LINE == 14)
    @test isempty(why(; variant = "layer-sequence-explicit")) == (LINE == 16)
    @test_throws ErrorException run_case("recur-sideways", a_case("gru"))

    versions = FluxBridge.versions()
    @test sort(collect(keys(versions))) == ["blas", "flux", "julia", "zygote"]
    @test versions["julia"] == string(VERSION)
end
