// Package sim simulates a mesh deterministically. It runs the real services gateway,
// policy, vault-broker and audit, and a session-runner without sandboxes, on an
// in-memory substitute for the NATS server, and a seed determines the order of all
// events on the ledger. DESIGN.md describes the simulation and its checks. The package
// contains only tests.
package sim
