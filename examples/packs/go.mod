module github.com/binnacle-mesh/binnacle/examples/packs

go 1.26.0
