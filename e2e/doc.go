// Package e2e tests a mesh from outside, with the built programs: in one process, in one
// process per service, on compose, and with three replicated NATS servers. Tests that
// consist of commands are scripts in testdata/script and testdata/alone, which run on
// the first three topologies; tests that need Go are in this package. Helpers that start
// meshes and providers belong in package harness, attacks in package attack, and
// benchmarks in package bench.
package e2e
