package dial

import (
	"crypto/x509"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// Roots returns the authorities for connections that the proxy does not terminate: the
// public ones of the program, and those of TLS_AUTHORITIES, in PEM. A sandbox has no
// authorities but that of its call.
func Roots() (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for r := range bundle.Roots() {
		c, err := x509.ParseCertificate(r.Certificate)
		if err != nil {
			return nil, err
		}
		if r.Constraint == nil {
			pool.AddCert(c)
			continue
		}
		pool.AddCertWithConstraint(c, r.Constraint)
	}
	if own := os.Getenv("TLS_AUTHORITIES"); own != "" && !pool.AppendCertsFromPEM([]byte(own)) {
		return nil, pack.Fail(pack.HandlerFailed, "TLS_AUTHORITIES: no certificate in PEM")
	}
	return pool, nil
}
