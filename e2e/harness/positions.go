package harness

import (
	"os"
	"path/filepath"
)

// LosePositions deletes the state of every consumer of the ledger from the files of the
// NATS server, as a damaged disk may. The server must not be running. The mesh must be
// of the topology one or processes.
func (m *Mesh) LosePositions() {
	m.T.Helper()
	consumers := m.Positions()
	if len(consumers) == 0 {
		m.T.Fatalf("the server stores no consumers in %s", m.Dir)
	}
	for _, c := range consumers {
		if err := os.RemoveAll(c); err != nil {
			m.T.Fatal(err)
		}
	}
}

// Positions returns the folders in which the NATS server stores the consumers of the
// ledger, on the topologies one and processes.
func (m *Mesh) Positions() []string {
	m.T.Helper()
	consumers, err := filepath.Glob(filepath.Join(m.Dir, "nats/jetstream/MESH/streams/EVENTS/obs/*"))
	if err != nil {
		m.T.Fatal(err)
	}
	return consumers
}
