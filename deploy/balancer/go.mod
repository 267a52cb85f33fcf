module github.com/binnacle-mesh/binnacle/deploy/balancer

go 1.26.0
