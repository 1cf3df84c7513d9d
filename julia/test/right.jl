# Variants that are right on the loaded line, against central differences, in every mode.

const RIGHT_IMPLICIT = LINE == 16 ? "cell-for-implicit" : "recur-map-implicit"
const RIGHT_EXPLICIT = LINE == 16 ?
    "layer-sequence-explicit" :
    "closure-map-explicit-captured"
const RIGHT_STACKED = LINE == 16 ? "layer-sequence-explicit" : "chain-for-implicit"
const TOLERANCE = 1.0e-7

function agrees(k, d, key, arrays; atol = TOLERANCE)
    return all(
        isapprox(d[key][l], difference(k, a); atol = atol)
        for (l, a) in enumerate(arrays)
    )
end

function check_weights(k, d)
    @test agrees(k, d, "dWi", k.weight_ih)
    @test agrees(k, d, "dWh", k.weight_hh)
    @test agrees(k, d, "db", k.bias)
end

function check_state(k, d, name, start)
    g = found_state(d, name)
    want = difference(k, start)
    if ndims(g) == 2
        @test d["batch_summed"]
        want = dropdims(sum(want; dims = 2); dims = 2)
    end
    @test size(g) == size(want)
    @test isapprox(g, want; atol = TOLERANCE)
end

function check_all(variant, k)
    d = run_case(variant, k)
    @test isapprox(d["y"], truth_forward(k)[1]; atol = 1.0e-12)
    check_weights(k, d)
    occursin("weights", variant) && return d
    check_state(k, d, "h", k.h0)
    k.mode == "lstm" && check_state(k, d, "c", k.c0)
    if haskey(d, "dx")
        @test size(d["dx"]) == size(k.x)
        @test isapprox(d["dx"], difference(k, k.x); atol = TOLERANCE)
    end
    return d
end

@testset "against central differences" begin
    @testset "$mode $variant" for mode in FluxBridge.KNOWN_MODES, variant in (
            RIGHT_IMPLICIT,
            RIGHT_EXPLICIT,
        )

        check_all(variant, a_case(mode; same_state = LINE == 11))
    end

    @testset "one loss step, $mode" for mode in ("rnn_tanh", "lstm")
        k = merge(a_case(mode; same_state = true), (loss_step = 3,))
        check_all(RIGHT_EXPLICIT, k)
    end

    @testset "last states in the loss, $variant" for variant in (
            RIGHT_IMPLICIT,
            RIGHT_EXPLICIT,
        )
        check_all(variant, a_case("lstm"; same_state = true, last = true))
    end

    @testset "two layers, $mode $variant" for mode in ("rnn_tanh", "lstm"), variant in (
            RIGHT_STACKED,
            "cell-for-implicit",
            "closure-for-explicit-captured",
        )

        check_all(variant, a_case(mode; layers = 2, same_state = LINE == 11, last = true))
    end

    if LINE < 16
        @testset "bare Recurs one after another, $how" for how in ("map", "for")
            check_all("recur-$how-implicit", a_case("gru"; layers = 2, same_state = true))
        end
    end
end

if LINE < 16
    @testset "a stale run says what it started from, $model" for model in ("recur", "chain")
        k = a_case("lstm"; same_state = true)
        d = run_case("$model-for-implicit-weights-stale", k)
        _, hn, cn = truth_forward(k)
        @test isapprox(d["start_h"], hn; atol = 1.0e-12)
        @test isapprox(d["start_c"], cn; atol = 1.0e-12)
        carried = merge(k, (h0 = hn, c0 = cn))
        @test isapprox(d["y"], truth_forward(carried)[1]; atol = 1.0e-12)
        check_weights(carried, d)
        alone = run_case(
            "$model-for-implicit-weights-stale",
            merge(k, (want_gradients = false,)),
        )
        @test alone["y"] == d["y"]
        @test alone["start_h"] == d["start_h"]
        @test alone["start_c"] == d["start_c"]
    end
end

@testset "Float32 stays Float32" begin
    @testset "$variant" for variant in (RIGHT_IMPLICIT, RIGHT_EXPLICIT)
        k = a_case("lstm"; same_state = true)
        single(a::AbstractArray{Float64}) = Float32.(a)
        single(a::AbstractVector{<:AbstractArray}) = map(single, a)
        single(a) = a
        d = run_case(variant, map(single, k))
        exact = run_case(variant, k)
        for key in ("y", "dx", "dh0", "dc0", "dstate_h", "dstate_c")
            get(d, key, nothing) === nothing && continue
            @test eltype(d[key]) == Float32
            @test isapprox(d[key], exact[key]; rtol = 1.0e-4)
        end
        for key in ("dWi", "dWh", "db")
            @test eltype(d[key][1]) == Float32
            @test isapprox(d[key][1], exact[key][1]; rtol = 1.0e-4)
        end
    end
end

# The last: nothing that is new is compiled from here on.
@testset "interpreted, $mode" for mode in ("rnn_relu", "lstm")
    FluxBridge.interpret()
    check_all(RIGHT_EXPLICIT, a_case(mode; same_state = true, layers = 3))
end
