// Package bench measures the performance of the mesh. The main figures are reported
// beside lower bounds that are measured in the same run. `make bench` runs the package,
// which prints one table and writes bench.json.
package bench
