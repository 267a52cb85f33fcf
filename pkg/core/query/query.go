// Package query names the queries between services and fixes the Go types of
// their requests and responses. It holds no transport: pkg/rpc sends and
// answers queries.
//
// The source is schemas/queries, one JSON Schema per query; `make gen` writes a
// descriptor for each into the package of the service that answers it
// (schemas/audit, schemas/policy, …). The queries that shared code answers are
// in this package. To add one, write its schema and run `make gen`.
package query

import "time"

// Info is what is known of a query before it is sent.
type Info struct {
	Service  string        // the service that answers; empty: any, which Of names
	Verb     string        // the query's name among those of the service
	Callers  []string      // the services that may send it; others are refused with code denied
	View     string        // the view that the response is read from; empty: it is read from none
	Deadline time.Duration // the longest that a client waits; a context may end sooner
}

// Query has one response of type A to a request of type Q.
type Query[Q, A any] struct{ Info }

// Of returns the query as it is sent to a service. It is for the queries that
// several services answer.
func (q Query[Q, A]) Of(service string) Query[Q, A] {
	q.Service = service
	return q
}

// List has a response of any number of items of type I, which arrive in parts.
type List[Q, I any] struct{ Info }

// Bytes has a response of bytes, which arrive in parts.
type Bytes[Q any] struct{ Info }

// Of returns the query as it is sent to a service.
func (q Bytes[Q]) Of(service string) Bytes[Q] {
	q.Service = service
	return q
}
