# The seed question: h = 0.5x + 0.001h + 0.85 over x = 0.3, 2.5; truth dWx = 2.8003.

const QUESTION = (
    mode = "rnn_identity",
    x = reshape([0.3, 2.5], 2, 1, 1),
    weight_ih = [fill(0.5, 1, 1)],
    weight_hh = [fill(0.001, 1, 1)],
    bias = [[0.85]],
    h0 = zeros(1, 1, 1),
    head = ones(2, 1, 1),
)

asked(variant; more...) = run_case(variant, QUESTION; more...)
number(a) = a === nothing ? nothing : only(a)
seen(d, key) = number(d[key] isa Vector{Any} ? d[key][1] : d[key])

"Variant, then dWx as published for 0.11, 0.12, 0.14 and 0.16; `missing` where there is none."
const PUBLISHED = [
    ("recur-broadcast-implicit", 2.8003, 2.8003, 2.8, missing),
    ("recur-broadcast-implicit-weights", 2.8003, 2.8003, 2.8025, missing),
    ("recur-broadcast-explicit", nothing, 2.8003, 2.8025, missing),
    ("recur-comprehension-implicit", 2.8003, 2.8003, 2.8003, missing),
    ("recur-comprehension-explicit", nothing, 2.8003, 5.3003, missing),
    ("recur-map-explicit", nothing, 2.8003, 2.8003, missing),
    ("recur-for-explicit", nothing, 2.8003, 2.8003, missing),
    ("recur-array3d-implicit", missing, missing, 2.8003, missing),
    ("recur-array3d-explicit", missing, missing, 5.3003, missing),
    ("chain-broadcast-implicit", 2.8, 2.8, 2.8, missing),
    ("chain-broadcast-implicit-weights", 2.8025, 2.8025, 2.8025, missing),
    ("chain-broadcast-explicit", nothing, 2.8025, 3.1025, missing),
    ("chain-comprehension-explicit", nothing, 2.8003, 5.3003, missing),
    ("chain-for-explicit", nothing, 2.8003, 5.3003, missing),
    ("closure-broadcast-implicit-weights-struct", 2.8025, 2.8025, 2.8025, 2.8025),
    ("closure-broadcast-explicit-struct", nothing, 2.8025, 2.8025, 2.8025),
    ("closure-comprehension-explicit-struct", nothing, 2.8003, 5.3003, 5.3003),
    ("closure-map-explicit-struct", nothing, 2.8003, 2.8003, 2.8003),
    ("closure-broadcast-implicit-weights-global", 2.8025, 2.8025, 2.8025, 2.8025),
    ("closure-for-implicit-weights-global", 2.8003, 2.8003, 2.8003, 2.8003),
    ("cell-for-implicit", 2.8003, 2.8003, 2.8003, 2.8003),
    ("layer-sequence-explicit", missing, missing, missing, 2.8003),
]

const COLUMN = Dict(11 => 2, 12 => 3, 14 => 4, 16 => 5)[LINE]

@testset "the seed question" begin
    @testset "$(row[1])" for row in PUBLISHED
        published = row[COLUMN]
        @test ismissing(published) == !has(row[1])
        ismissing(published) && continue
        d = asked(row[1])
        if published === nothing
            @test d["dWi"] == Any[nothing]
        else
            @test seen(d, "dWi") ≈ published atol = 1.0e-12
        end
        @test vec(d["y"]) ≈ [1.0, 2.101] atol = 1.0e-15
    end

    @testset "what a request yields" begin
        d = asked("cell-for-implicit-weights")
        @test sort(collect(keys(d))) == ["dWh", "dWi", "db", "y"]
        d = asked("cell-for-explicit"; want_x = false, want_y = false)
        @test !haskey(d, "dx") && !haskey(d, "y")
    end

    if LINE == 16
        d = asked("closure-for-explicit-ref")
        @test seen(d, "dWi") ≈ 2.8003 atol = 1.0e-12
        @test seen(d, "dh0") ≈ 0.003002 atol = 1.0e-12
        @test seen(asked("closure-comprehension-explicit-local-struct"), "dWi") ≈
            8.1006 atol = 1.0e-12
    end

    if LINE < 16
        @testset "a carried state is a constant" begin
            d = asked("recur-map-implicit-stale")
            @test seen(d, "dWi") ≈ 2.8003 atol = 1.0e-12
            @test seen(d, "dWh") ≈ 3.105202 atol = 1.0e-12
            @test seen(d, "db") ≈ 2.001 atol = 1.0e-12
            @test d["dh0"] === nothing
            @test only(d["start_h"]) ≈ 2.101 atol = 1.0e-12
        end
        @testset "an explicit gradient of the initial state lies in the state field" begin
            d = asked("recur-map-explicit")
            @test d["dh0"] === nothing
            @test only(d["dstate_h"]) ≈ 0.001001 atol = 1.0e-12
        end
    end

    if LINE == 14
        raising = "recur-comprehension-explicit-inside"
        @test_throws MethodError asked(raising)
        d = asked(raising; want_gradients = false)
        @test collect(keys(d)) == ["y"]
        @test vec(d["y"]) ≈ [1.0, 2.101] atol = 1.0e-15
        @test seen(asked("recur-comprehension-implicit-global"), "dWi") ≈ 2.8 atol = 1.0e-12
    end

    @testset "one loss step" begin
        d = asked("closure-for-explicit-captured"; loss_step = 1)
        @test vec(d["dx"]) ≈ [0.5, 0.0] atol = 1.0e-15
        d = asked("closure-for-explicit-captured"; loss_step = 2)
        @test vec(d["dx"]) ≈ [0.0005, 0.5] atol = 1.0e-15
    end

    @testset "a run leaves its arrays alone and repeats" begin
        before = deepcopy(QUESTION)
        variant = LINE == 16 ?
            "closure-broadcast-explicit-struct" :
            "chain-broadcast-explicit"
        first_run, second_run = asked(variant), asked(variant)
        @test first_run == second_run
        @test before == QUESTION
    end
end
