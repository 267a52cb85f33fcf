module github.com/binnacle-mesh/binnacle/schemas

go 1.26.0

require github.com/binnacle-mesh/binnacle/pkg/core v0.0.0

replace github.com/binnacle-mesh/binnacle/pkg => ../pkg

replace github.com/binnacle-mesh/binnacle/pkg/core => ../pkg/core
