// Package bench measures the performance of the mesh. Each figure is reported beside its
// lower bound, measured in the same run. `make bench` runs the package, which prints one
// table and writes bench.json.
package bench
