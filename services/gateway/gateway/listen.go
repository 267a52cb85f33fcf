package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/tlsfiles"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/acme"
)

// listen returns the listener for requests, which uses TLS if a certificate is
// configured, and the address that it is bound to.
func (s *Service) listen() (l net.Listener, bound string, err error) {
	if l = s.Listener; l == nil {
		if l, err = net.Listen("tcp", s.Addr); err != nil {
			return nil, "", fmt.Errorf("listen on %s: %w; set another address with --addr", s.Addr, err)
		}
	}
	bound = l.Addr().String()
	conf, err := s.tlsConfig(l.Addr())
	if err != nil {
		l.Close()
		return nil, "", fmt.Errorf("gateway: %w", err)
	}
	if conf == nil {
		tlsfiles.Warn("gateway", bound)
		return l, bound, nil
	}
	return tls.NewListener(l, conf), bound, nil
}

// tlsConfig returns the configuration of TLS for a listener that is bound to an address, or nil if
// there is no certificate. It sets s.certificates if they are obtained by ACME. It is an error to
// request certificates of clients without a certificate of the gateway.
func (s *Service) tlsConfig(bound net.Addr) (*tls.Config, error) {
	clients, err := tlsfiles.OpenClients(s.TLS.ClientCA, s.TLS.ClientCertificates)
	if err != nil {
		return nil, err
	}
	conf, err := s.serverConfig(bound)
	switch {
	case err != nil:
		return nil, err
	case conf == nil && clients != nil:
		return nil, errors.New("tls: certificates of clients need a certificate of the gateway: set gateway.tls.cert and gateway.tls.key, or gateway.acme.domains")
	}
	if clients != nil {
		conf = clients.Config(conf)
	}
	if s.certificates != nil {
		conf = s.certificates.Challenges(conf)
	}
	return conf, nil
}

// serverConfig returns the configuration of TLS without the certificates of clients, or nil if there
// is no certificate.
func (s *Service) serverConfig(bound net.Addr) (*tls.Config, error) {
	files, err := tlsfiles.Open(s.TLS.Cert, s.TLS.Key)
	switch {
	case err != nil:
		return nil, err
	case files != nil && len(s.ACME.Domains) > 0:
		return nil, errors.New("tls: the certificate is from files or obtained by ACME: set either gateway.tls.cert or gateway.acme.domains")
	case files != nil:
		return files.Config(), nil
	case len(s.ACME.Domains) == 0:
		return nil, nil
	}
	if s.ACME.Challenge == acme.HTTP {
		if s.challenges, err = net.Listen("tcp", s.ACME.HTTPListen); err != nil {
			return nil, fmt.Errorf("acme: %w; set another address with gateway.acme.http_listen", err)
		}
		bound = s.challenges.Addr()
	}
	proxy := endpoint.New(s.env.Queries, egress.EndpointACME, "").DialContext
	c := &s.ACME
	s.certificates, err = acme.New(acme.Config{Domains: c.Domains, Email: c.Email, Directory: c.Directory, CA: c.CA, Storage: c.Storage, Challenge: c.Challenge, Log: s.env.Log,
		Dial: func(ctx context.Context) (net.Conn, error) { return proxy(ctx, "", "") }}, bound)
	if err != nil {
		return nil, err
	}
	return s.certificates.Config(), nil
}

// obtain obtains and renews the certificates until ctx is done, if they are obtained by ACME, and
// serves the challenges that arrive over HTTP.
func (s *Service) obtain(ctx context.Context, g *errgroup.Group) {
	if s.certificates == nil {
		return
	}
	g.Go(func() error {
		defer s.certificates.Close()
		return s.certificates.Run(ctx)
	})
	if s.challenges == nil {
		return
	}
	srv := &http.Server{Handler: s.certificates.Handler(), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	g.Go(func() error {
		if err := srv.Serve(s.challenges); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return srv.Close()
	})
}
