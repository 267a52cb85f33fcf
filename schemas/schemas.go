// Package schemas embeds the schemas of events and of queries: JSON Schema 2020-12, one
// file per event and version, frozen by LOCK once released, and one file per query. It
// also embeds the conformance tests for HTTP endpoints. It imports nothing else of the
// mesh. To add a schema, add a file and run `make gen`; for an event, run gen with -lock
// first, which adds the file to LOCK.
package schemas

import "embed"

//go:generate go run ./gen

// Events holds events/<service>/<name>.v<n>.json. Folder "mesh" holds the
// schemas of events that several services produce.
//
//go:embed events
var Events embed.FS

// Queries holds queries/<service>/<verb>.json, one schema for each query, and
// queries/<service>/types.json, the types that a service's queries share. Folder "mesh"
// holds the queries that several services answer. See schemas/gen for the format.
//
//go:embed queries
var Queries embed.FS

// Conformance holds the conformance tests for HTTP endpoints, one file for each level:
// conformance/http/<level>.json.
//
//go:embed conformance/http
var Conformance embed.FS

// Lock lists the digest of every event schema that is released or will be in the next
// release. The digest of Lock identifies the whole set.
//
//go:embed LOCK
var Lock []byte
