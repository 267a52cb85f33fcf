// Package embed runs a NATS server in this process. It is separate from package bus so
// that a service that runs alone does not link a server.
package embed

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/binnacle-mesh/binnacle/pkg/bus/embed/syncer"
	"github.com/binnacle-mesh/binnacle/pkg/tlsfiles"
)

// Server is a NATS server in this process.
type Server struct {
	*server.Server
	syncer *syncer.Syncer  // nil unless the server commits in groups
	files  *tlsfiles.Files // certificate for clients; nil for that of the configuration
}

// Start starts a server in this process with a configuration such as bus.ServerConfig
// returns, and returns when it is ready for connections. Without a listen address in the
// configuration, only this process can connect. A single server that is configured to sync
// every write commits in groups instead; see package syncer. Start returns an error if the
// configuration is invalid, if the server cannot be created or is not ready within 10
// seconds, or if package syncer returns one. If files is not nil and the configuration has
// TLS, the server uses the certificate of files for clients, and reloads it when the files
// change. To stop the server, close every connection, then call Shutdown and
// WaitForShutdown.
func Start(config string, files *tlsfiles.Files) (*Server, error) {
	o, err := options(config, files)
	if err != nil {
		return nil, err
	}
	sync, err := syncer.Prepare(o)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("nats server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return nil, errors.New("nats server did not become ready; is the store directory writable and not in use?")
	}
	if err := sync.Run(s); err != nil {
		s.Shutdown()
		return nil, err
	}
	return &Server{Server: s, syncer: sync, files: files}, nil
}

// options returns the options of a server with a configuration.
func options(config string, files *tlsfiles.Files) (*server.Options, error) {
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
	return o, nil
}

// Reload makes the running server use another configuration, which differs in the users of
// accounts alone. Connections of users that it still has remain.
func (s *Server) Reload(config string) error {
	o, err := options(config, s.files)
	if err == nil {
		err = s.syncer.Adapt(o)
	}
	if err != nil {
		return err
	}
	return s.ReloadOptions(o)
}

// WaitForShutdown waits until the server has ended after a call of Shutdown. A server that
// commits in groups then syncs all of its files.
func (s *Server) WaitForShutdown() {
	s.Server.WaitForShutdown()
	if err := s.syncer.Close(); err != nil {
		slog.Error("the files of the NATS server were not synced at its end", "err", err)
	}
}
