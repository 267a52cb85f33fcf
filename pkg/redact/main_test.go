package redact

import (
	"flag"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/endless"
)

func TestMain(m *testing.M) {
	flag.Parse()
	limit := 15 * time.Second
	if testing.Short() {
		limit = 6 * time.Second // with -short, the tests use about a third of the time
	}
	endless.Run(m, limit)
}
