// Package schemas embeds the event schemas: JSON Schema 2020-12, one file per
// event and version, frozen by LOCK once released.
package schemas

import "embed"

//go:generate go run ./gen

// Events holds events/<service>/<name>.v<n>.json. Folder "mesh" holds the
// contracts that several services produce.
//
//go:embed events
var Events embed.FS

// Conformance holds the gates that an endpoint is driven through,
// conformance/http/<level>.json.
//
//go:embed conformance/http
var Conformance embed.FS

// Lock lists the digest of every schema that is released or about to be; its own
// digest names the whole set.
//
//go:embed LOCK
var Lock []byte
