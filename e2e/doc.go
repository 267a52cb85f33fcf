// Package e2e tests a mesh from outside, through the built programs, on one process,
// on one process per service and on compose. What a user can type is a script in
// testdata/script, which runs on every topology; what needs Go is a test here.
// Helpers that start meshes and providers belong in package harness, attacks in
// package attack, benchmarks in package bench.
package e2e
