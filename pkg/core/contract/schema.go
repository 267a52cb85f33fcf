package contract

import (
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// schemaID identifies an event schema; owner is a service, or "mesh" for the
// shared schemas.
type schemaID struct {
	owner, name string
	version     int
}

type schema struct {
	shape  *canon.Shape
	digest string // hex SHA-256 of the schema's file
}

// CheckData returns an error unless Data is in canonical form and matches the schema
// that the event's service, name and version identify. It also returns an error if this
// release has no such schema.
func (e *Event) CheckData() error {
	s, ok := schemas[schemaID{e.schemaOwner(), e.Name, e.Version}]
	if !ok {
		return fmt.Errorf("schema %s is not known to this release", e.dataSchema())
	}
	if err := s.shape.Check(e.Data); err != nil {
		return fmt.Errorf("data does not fit its schema v%d: %w", e.Version, err)
	}
	return nil
}
