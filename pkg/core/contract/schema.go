package contract

import (
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

type schemaID struct {
	owner, name string
	version     int
}

type schema struct {
	shape  *canon.Shape
	digest string // hex SHA-256 of the schema's file
}

// CheckData returns an error unless the event's data is the canonical form of a
// value of the schema that the event names. An event whose schema is unknown to
// this release fails.
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

// SchemaDigests lists the schemas that CheckData knows: the digest of each file
// by its path below schemas.
func SchemaDigests() map[string]string {
	out := map[string]string{}
	for id, s := range schemas {
		out[fmt.Sprintf("events/%s/%s.v%d.json", id.owner, id.name, id.version)] = s.digest
	}
	return out
}
