module github.com/binnacle-mesh/binnacle/e2e

go 1.26.0

require (
	github.com/rogpeppe/go-internal v1.16.0
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/tools v0.26.0 // indirect
)

replace (
	github.com/binnacle-mesh/binnacle/pkg => ../pkg
	github.com/binnacle-mesh/binnacle/pkg/core => ../pkg/core
)
