package hook

import (
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/endless"
)

func TestMain(m *testing.M) { endless.Run(m, 20*time.Second) }
