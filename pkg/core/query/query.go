// Package query defines the descriptors of queries between services, which fix the Go
// types of requests and responses. It contains no transport: pkg/rpc sends and answers
// queries.
//
// The source is schemas/queries, one JSON Schema per query; `make gen` writes a
// descriptor for each into the package of the service that answers it (schemas/audit,
// schemas/policy, …), or into this package for the queries that shared code answers. To
// add one, write its schema and run `make gen`.
package query

import "time"

// Info describes a query, apart from the types of its request and response.
type Info struct {
	Service  string        // service that answers the query; empty for a query that several services answer, until Of sets it
	Verb     string        // name of the query, unique within the service
	Callers  []string      // services, or groups such as "executors", that may send the query; any other service receives the error code denied
	Scope    Scope         // tenants for which the query may be sent; for any other, it fails with the error code not_found
	View     string        // view from which the response is read; empty = none
	Deadline time.Duration // time that an instance has for the response; a context may end earlier
}

// Scope states for which tenants a query may be sent.
type Scope uint8

// The scopes of queries.
const (
	OfBoth   Scope = iota // for a tenant, and for the tenant of the mesh itself
	OfTenant              // for a tenant that was created, or for the original one
	OfCell                // for the tenant of the mesh itself
)

// Admits reports whether a query may be sent for a tenant. cell reports whether it is
// the tenant of the mesh itself, and tenant whether it is the original tenant or one
// that was created. On a ledger with one tenant, both are true.
func (s Scope) Admits(cell, tenant bool) bool {
	return cell && s != OfTenant || tenant && s != OfCell
}

// Query is a query with one response of type A to a request of type Q.
type Query[Q, A any] struct{ Info }

// Of returns the query addressed to a service. It is used for queries that several
// services answer.
func (q Query[Q, A]) Of(service string) Query[Q, A] {
	q.Service = service
	return q
}

// List is a query whose response is any number of items of type I, received in parts.
type List[Q, I any] struct{ Info }

// Bytes is a query whose response is a sequence of bytes, received in parts.
type Bytes[Q any] struct{ Info }

// Of returns the query addressed to a service.
func (q Bytes[Q]) Of(service string) Bytes[Q] {
	q.Service = service
	return q
}
