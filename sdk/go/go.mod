module github.com/binnacle-mesh/binnacle/sdk/go

go 1.26.0
