module github.com/binnacle-mesh/binnacle/deploy/balancer

go 1.26.0

require github.com/binnacle-mesh/binnacle/pkg v0.0.0

replace github.com/binnacle-mesh/binnacle/pkg => ../../pkg

replace github.com/binnacle-mesh/binnacle/pkg/core => ../../pkg/core

replace github.com/binnacle-mesh/binnacle/schemas => ../../schemas
