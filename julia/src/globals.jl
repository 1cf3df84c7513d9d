"""
A script in a module: everything the question's function reads and writes is an untyped global, and
so is a model that lives in a notebook. Setters have fixed names; nothing here comes from a string.
"""
module Globals

using ..FluxBridge: lstm_step, gru_step

# The question's own program: a global function over global weights and a global state.
Wx = nothing
Wh = nothing
b = nothing
h = nothing
c = nothing
act = identity

function set_weights!(activation, input, hidden, bias)
    global act = activation
    global Wx = input
    global Wh = hidden
    global b = bias
    return nothing
end

function set_state!(hidden, memory)
    global h = hidden
    global c = memory
    return nothing
end

get_state() = c === nothing ? h : (h, c)

function step_rnn(x)
    global h = act.(Wx * x .+ Wh * h .+ b)
    return h
end

function step_lstm(x)
    new_h, new_c = lstm_step(Wx, Wh, b, h, c, x)
    global h = new_h
    global c = new_c
    return new_h
end

function step_gru(x)
    global h = gru_step(Wx, Wh, b, h, x)
    return h
end

# A model of Flux in a global.
model = nothing

function set_model!(m)
    global model = m
    return nothing
end

# Applied as a script applies it: the name of the global stands in the code.
call_model(x) = model(x)
model_broadcast(xs) = model.(xs)
model_comprehension(xs) = [model(x) for x in xs]
model_map(xs) = map(model, xs)

end
