# What the tests trust: the recurrences written as loops over numbers, and central differences.

sigma(z) = 1 / (1 + exp(-z))

"A matrix times a vector, plus a vector, without BLAS."
affine(W, v, b) = [sum(W[i, j] * v[j] for j in axes(W, 2)) + b[i] for i in axes(W, 1)]

function truth_step(mode, Wi, Wh, b, h, c, x)
    n = length(h)
    u, w = affine(Wi, x, b), affine(Wh, h, zero(b))
    if mode == "lstm"
        g = u + w
        part(k) = g[((k - 1) * n + 1):(k * n)]
        c = sigma.(part(2)) .* c + sigma.(part(1)) .* tanh.(part(3))
        return sigma.(part(4)) .* tanh.(c), c
    elseif mode == "gru"
        piece(a, k) = a[((k - 1) * n + 1):(k * n)]
        r = sigma.(piece(u, 1) + piece(w, 1))
        z = sigma.(piece(u, 2) + piece(w, 2))
        fresh = tanh.(piece(u, 3) + r .* piece(w, 3))
        return (1 .- z) .* fresh + z .* h, c
    end
    act = Dict("rnn_tanh" => tanh, "rnn_relu" => z -> max(z, 0), "rnn_identity" => identity)
    return act[mode].(u + w), c
end

"Outputs (time, batch, hidden) and last states (layers, batch, hidden) of a case."
function truth_forward(k)
    T, B = size(k.x, 1), size(k.x, 2)
    H = size(k.h0, 3)
    y = zeros(T, B, H)
    hn, cn = copy(k.h0), copy(k.c0)
    for s in 1:B, t in 1:T
        v = k.x[t, s, :]
        for l in axes(k.h0, 1)
            Wi, Wh, b = k.weight_ih[l], k.weight_hh[l], k.bias[l]
            h, c = truth_step(k.mode, Wi, Wh, b, hn[l, s, :], cn[l, s, :], v)
            hn[l, s, :], cn[l, s, :] = h, c
            v = h
        end
        y[t, s, :] = v
    end
    return y, hn, cn
end

function truth_loss(k)
    y, hn, cn = truth_forward(k)
    k.loss_step === nothing || return sum(k.head[k.loss_step, :, :] .* y[k.loss_step, :, :])
    total = sum(k.head .* y)
    k.head_hn === nothing || (total += sum(k.head_hn .* hn))
    k.head_cn === nothing || (total += sum(k.head_cn .* cn))
    return total
end

"dL/da by central differences; `a` is an array of the case `k`."
function difference(k, a; h = 1.0e-6)
    g = zero(a)
    for i in eachindex(a)
        kept = a[i]
        a[i] = kept + h
        up = truth_loss(k)
        a[i] = kept - h
        down = truth_loss(k)
        a[i] = kept
        g[i] = (up - down) / 2h
    end
    return g
end

"Numbers that look random and are the same everywhere."
wave(seed, dims...) = reshape([sin(seed + 1.7i + 0.3i^2) for i in 1:prod(dims)], dims...)

const GATES = Dict("lstm" => 4, "gru" => 3)

function a_case(
    mode;
    layers = 1,
    T = 4,
    B = 2,
    I = 2,
    H = 3,
    same_state = false,
    last = false,
)
    G = get(GATES, mode, 1)
    fan_in(l) = l == 1 ? I : H
    state(seed) = same_state ?
        repeat(wave(seed, layers, 1, H), 1, B, 1) :
        wave(seed, layers, B, H)
    return (
        mode = mode,
        x = wave(1.0, T, B, I),
        weight_ih = [0.7 .* wave(2.0 + l, G * H, fan_in(l)) for l in 1:layers],
        weight_hh = [0.6 .* wave(5.0 + l, G * H, H) for l in 1:layers],
        bias = [0.5 .* wave(8.0 + l, G * H) for l in 1:layers],
        h0 = 0.4 .* state(11.0),
        c0 = 0.4 .* state(12.0),
        head = wave(13.0, T, B, H),
        head_hn = last ? wave(14.0, layers, B, H) : nothing,
        head_cn = last && mode == "lstm" ? wave(15.0, layers, B, H) : nothing,
        loss_step = nothing,
    )
end

run_case(variant, k; more...) = FluxBridge.gradients(; variant = variant, k..., more...)

"The initial-state gradient, in the field where this line's explicit API puts it."
function found_state(d, name)
    get(d, "d" * name * "0", nothing) === nothing || return d["d" * name * "0"]
    return get(d, "dstate_" * name, nothing)
end
