// Package sim simulates a mesh deterministically. It runs all services of a mesh, except that a
// substitute with simulated containers replaces the session-runner, on an in-memory substitute for the
// NATS server. A seed determines the order of all events on the ledger. DESIGN.md describes the
// simulation and its checks. The package contains only tests:
//
//	go test ./services/binnacle/internal/sim                            # 20 schedules
//	go test ./services/binnacle/internal/sim -run TestSeed -seed 36 -v  # one, with its transcript
//	go test -tags simulator ./services/binnacle/internal/sim -run TestTwice -seed 36
//	make simulator                                                      # what CI runs
//	make simulate                                                       # a million; can be resumed
//
// A line of a transcript has the simulated time in seconds, the step, and what happened:
// "policy/2.1 > ..." is an operation of the second instance of policy in its first life, "<" a
// message to it, EVENT an event that was stored. SIM_LOG=1 adds the logs of the services. A
// schedule depends on the code: the seed of a failure reproduces it only on the same commit.
package sim
