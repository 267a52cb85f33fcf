package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// failure is an error with the reason that is recorded for the flow.
type failure struct {
	reason netrule.Reason
	err    error
}

func (f *failure) Error() string { return fmt.Sprintf("%s: %v", f.reason, f.err) }
func (f *failure) Unwrap() error { return f.err }

// dial opens a connection to a host and port. It resolves the host once, checks every
// address, and dials the first maxDials of the addresses that it has checked, one after the
// other, so that a later DNS response has no effect (DNS rebinding). If one address is
// blocked, dial fails.
func (p *Proxy) dial(ctx context.Context, _, hostPort string) (net.Conn, error) {
	return p.dialChecked(ctx, hostPort, p.cfg.Addresses.Check)
}

// dialConfigured is dial for plain HTTP with a credential. It fails unless every address is
// in one of the networks of Config.Addresses.Allowed, because the credential is sent
// unencrypted.
func (p *Proxy) dialConfigured(ctx context.Context, _, hostPort string) (net.Conn, error) {
	return p.dialChecked(ctx, hostPort, func(a netip.Addr) error {
		if !p.cfg.Addresses.Configured(a) {
			return fmt.Errorf("address %s is not in a configured network, and a credential would be sent to it unencrypted: use mode terminate", a)
		}
		return nil
	})
}

func (p *Proxy) dialChecked(ctx context.Context, hostPort string, check func(netip.Addr) error) (net.Conn, error) {
	host, literal, port, err := netrule.ParseAuthority(hostPort, 0)
	if err != nil {
		return nil, &failure{HostInvalid, err}
	}
	addrs := []netip.Addr{literal}
	if !literal.IsValid() {
		if addrs, err = p.resolve(ctx, host); err != nil {
			return nil, &failure{ResolveFailed, err}
		}
	}
	for _, a := range addrs {
		if err := check(a); err != nil {
			return nil, &failure{netrule.AddressBlocked, err}
		}
	}
	var errs []error
	for i, a := range addrs {
		if i == maxDials {
			errs = append(errs, fmt.Errorf("%d further address(es) of %s not tried", len(addrs)-i, host))
			break
		}
		c, err := p.dialAddr(ctx, netip.AddrPortFrom(a, uint16(port)))
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &failure{ConnectFailed, errors.Join(errs...)}
}

func (p *Proxy) dialAddr(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Limits.Connect)
	defer cancel()
	return p.cfg.Dial(ctx, "tcp", a.String())
}

// maxDials is the maximum number of addresses of a name that dial tries. It checks all of
// them.
const maxDials = 8

// resolve returns all addresses of a host, each once.
func (p *Proxy) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Limits.Connect)
	defer cancel()
	found, err := p.cfg.Resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range found {
		if a = a.Unmap(); !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("no address")
	}
	return addrs, nil
}

// authorityOf returns host and port as in a URL.
func authorityOf(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// reasonOf returns the reason of an error of the transport.
func reasonOf(err error) netrule.Reason {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.reason
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return CertificateInvalid
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return TimedOut
	}
	return UpstreamFailed
}
