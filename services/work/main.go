// Command work executes the calls for artifacts and pipelines, and removes the content of
// artifacts when it is due.
//
// Several instances may run at a time, because they keep their state in the ledger and in the
// store of artifacts. Package work implements the service, which can also run in the process
// of the whole mesh; this file reads the configuration that docs/reference/configuration.md
// describes, and starts the service.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/artifact/s3"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/work/work"
)

func main() {
	run.Main(services.Work, func(_ run.Keys, c *config.Config) (run.Service, error) {
		store, err := s3.FromConfig(&c.Artifacts.S3, true)
		if err != nil {
			return nil, err
		}
		return &work.Service{Config: work.Config{Store: store, Quota: int64(c.Work.ArtifactQuota)}}, nil
	})
}
