"""Tables, files and the terminal."""
