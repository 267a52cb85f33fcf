// Command work executes the calls for artifacts and pipelines, and removes the content of
// artifacts when it is due.
//
// It keeps no state, so several instances may run at a time. Package work implements the
// service, which can also run in the process of the whole mesh; this file reads the
// configuration that docs/reference/configuration.md describes, and starts the service.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/work/work"
)

func main() {
	run.Main("work", func(_ run.Keys, c *config.Config) (run.Service, error) {
		return &work.Service{Config: work.Config{Quota: int64(c.Work.ArtifactQuota)}}, nil
	})
}
