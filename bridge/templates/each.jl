# Runs every script named on the command line in a module of its own, so that Flux is loaded and compiled once.
struct Exit <: Exception
    code::Int
end

unwrapped(error) = error isa LoadError ? unwrapped(error.error) : error

function code_of(path)
    script = Module()
    Core.eval(script, :(exit(code) = throw($Exit(code))))
    try
        Base.include(script, path)
        return 0
    catch error
        inner = unwrapped(error)
        return inner isa Exit ? inner.code : -1
    end
end

for name in ARGS
    println("\n== ", name, " ended with ", code_of(abspath(name)))
    flush(stdout)
end
