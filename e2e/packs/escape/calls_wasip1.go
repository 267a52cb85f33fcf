package main

// calls returns no attempts, because WebAssembly cannot make system calls of the host.
func calls() []attempt { return nil }

func facts() map[string]any { return map[string]any{} }

// forks returns 0: WebAssembly has no processes.
func forks() int { return 0 }

// burn runs a loop whose length is proportional to ms. It cannot measure CPU time,
// because the clock of this tier does not show the real time.
func burn(ms int64) {
	for i := range ms * 20_000 {
		sink += uint64(i) * sink
	}
}

var sink uint64 = 1
