// Package bench measures the mesh, each figure beside its floor taken in the
// same run. `make bench` runs it; it prints one table and writes bench.json.
package bench
