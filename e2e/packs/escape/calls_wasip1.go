package main

// calls is empty: WebAssembly has no system calls of the host.
func calls() []attempt { return nil }

func facts() map[string]any { return map[string]any{} }

// burn uses about milliseconds of CPU time: no clock here is true.
func burn(ms int64) {
	for i := range ms * 20_000 {
		sink += uint64(i) * sink
	}
}

var sink uint64 = 1
