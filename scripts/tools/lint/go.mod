module github.com/binnacle-mesh/binnacle/scripts/tools/lint

go 1.26.0
