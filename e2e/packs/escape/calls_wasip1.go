package main

// calls is empty: WebAssembly has no system calls of the host.
func calls() []attempt { return nil }

func facts() map[string]any { return map[string]any{} }

// burn uses roughly ms milliseconds of CPU time: the clock of this tier is not real.
func burn(ms int64) {
	for i := range ms * 20_000 {
		sink += uint64(i) * sink
	}
}

var sink uint64 = 1
