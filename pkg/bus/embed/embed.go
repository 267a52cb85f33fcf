// Package embed runs a NATS server in this process. It is separate from package bus so
// that a service that runs alone does not link a server.
package embed

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/binnacle-mesh/binnacle/pkg/tlsfiles"
)

// Start starts a server in this process with a configuration such as bus.ServerConfig
// returns, and returns when it is ready for connections. Without a listen address in the
// configuration, only this process can connect. Start returns an error if the
// configuration is invalid or the server is not ready within 10 seconds. If files is not
// nil and the configuration has TLS, the server uses the certificate of files for
// clients, and reloads it when the files change. To stop the server, close every
// connection, then call Shutdown and WaitForShutdown.
func Start(config string, files *tlsfiles.Files) (*server.Server, error) {
	o := &server.Options{}
	if err := o.ProcessConfigString(config); err != nil {
		return nil, fmt.Errorf("nats configuration: %w", err)
	}
	if files != nil && o.TLSConfig != nil {
		o.TLSConfig.Certificates, o.TLSConfig.GetCertificate = nil, files.Certificate
	}
	o.NoSigs = true
	o.NoLog = true
	o.DontListen = o.Port == 0 || o.Host == ""
	s, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("nats server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return nil, errors.New("nats server did not become ready; is the store directory writable and not in use?")
	}
	return s, nil
}
