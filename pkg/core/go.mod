module github.com/binnacle-mesh/binnacle/pkg/core

go 1.26.0
