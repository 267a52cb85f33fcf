// Package s3 stores the parts of artifacts as objects of a bucket of an S3 endpoint. The key
// of an object is that of the part with slashes instead of dots, so the objects of an upload
// have the prefix TENANT/SERVICE/UPLOAD/. The endpoint must support conditional writes
// (If-None-Match), with which a part is stored once.
package s3

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/config"
)

// Config is the configuration of a Store.
type Config struct {
	Endpoint  string // URL, such as https://s3.example.com
	Bucket    string // name of the bucket, which exists
	Region    string // region of the bucket; empty means us-east-1
	CA        string // PEM file of the authority of the endpoint's certificate; empty means those of the system
	AccessKey string
	SecretKey string
}

// Store implements artifact.Collected. Its credentials need the rights to read and write
// objects of the bucket and to list the bucket, without which an endpoint does not report that
// an object is missing, and for Remove also the right to delete objects.
type Store struct {
	client  *minio.Client
	via     *transport
	bucket  string
	timeout time.Duration // of one request for a part; requestTimeout except in tests
}

// requestTimeout is the maximum duration of one request for a part.
const requestTimeout = 30 * time.Second

// New returns a store. It does not connect. The error for a missing or malformed member of c
// names the setting.
func New(c Config) (*Store, error) {
	u, err := url.Parse(c.Endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.Trim(u.Path, "/") != "" || u.User != nil:
		return nil, errors.New("artifacts/s3/endpoint: want the URL of an S3 endpoint without a path, such as https://s3.example.com")
	case c.Bucket == "":
		return nil, errors.New("artifacts/s3/bucket: name the bucket")
	case c.AccessKey == "" || c.SecretKey == "":
		return nil, errors.New("artifacts/s3/credentials: want ACCESS-KEY:SECRET-KEY")
	}
	t, err := minio.DefaultTransport(u.Scheme == "https")
	if err != nil {
		return nil, err
	}
	if c.CA != "" {
		if t.TLSClientConfig, err = authorities(c.CA); err != nil {
			return nil, err
		}
	}
	via := &transport{direct: t}
	region := c.Region
	if region == "" {
		region = "us-east-1"
	}
	client, err := minio.New(u.Host, &minio.Options{Creds: credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""), Secure: u.Scheme == "https", Region: region, Transport: via, BucketLookup: minio.BucketLookupPath})
	if err != nil {
		return nil, fmt.Errorf("artifacts/s3: %w", err)
	}
	return &Store{client, via, c.Bucket, requestTimeout}, nil
}

// transport sends the requests of a Store.
type transport struct {
	direct *http.Transport
	set    sync.Once
	other  atomic.Pointer[http.RoundTripper] // replaces direct; see Store.Connect
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if other := t.other.Load(); other != nil {
		return (*other).RoundTrip(r)
	}
	return t.direct.RoundTrip(r)
}

// Server implements artifact.Remote.
func (s *Store) Server() string { return s.client.EndpointURL().String() }

// Connect implements artifact.Remote.
func (s *Store) Connect(via func(*tls.Config) http.RoundTripper) {
	s.via.set.Do(func() {
		other := via(s.via.direct.TLSClientConfig)
		s.via.other.Store(&other)
	})
}

// authorities returns a TLS configuration that trusts the certificates in a PEM file.
func authorities(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("artifacts/s3/ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("artifacts/s3/ca: %s has no certificate in PEM", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// FromConfig returns the store that a program's configuration names, or nil if the stream
// ARTIFACTS stores artifacts. The credentials are those of the collector if collects is set
// and the configuration has them.
func FromConfig(c *config.S3, collects bool) (artifact.Collected, error) {
	if c.Endpoint == "" {
		return nil, nil
	}
	from, name := c.Credentials, "credentials"
	if collects && c.Collector.Given() {
		from, name = c.Collector, "collector"
	}
	if !from.Given() {
		return nil, fmt.Errorf("artifacts/s3/%s: name the file or descriptor with ACCESS-KEY:SECRET-KEY", name)
	}
	text, err := from.Read()
	if err != nil {
		return nil, fmt.Errorf("artifacts/s3/%s: %w", name, err)
	}
	access, secret, ok := strings.Cut(text, ":")
	if !ok {
		return nil, fmt.Errorf("artifacts/s3/%s: %s does not have ACCESS-KEY:SECRET-KEY", name, from.Where())
	}
	s, err := New(Config{Endpoint: c.Endpoint, Bucket: c.Bucket, Region: c.Region, CA: c.CA, AccessKey: access, SecretKey: secret})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// object returns the key of the object that has the part with a key.
func object(key string) string { return strings.ReplaceAll(key, ".", "/") }

// prefix returns the beginning of the keys of the objects of an upload.
func prefix(p artifact.Parts) string { return p.Tenant + "/" + p.Service + "/" + p.Upload + "/" }

// status returns the HTTP status of an error of the endpoint, or 0.
func status(err error) int { return minio.ToErrorResponse(err).StatusCode }

// failed returns an error that names the bucket. Errors of the client do not contain
// credentials.
func (s *Store) failed(what string, err error) error {
	return fmt.Errorf("%s bucket %s: %w", what, s.bucket, err)
}

// Put implements artifact.Store.
func (s *Store) Put(ctx context.Context, key string, part []byte) error {
	return artifact.Repeat(ctx, s.timeout, func(ctx context.Context) error { return s.put(ctx, key, part) })
}

// put is one attempt of Put.
func (s *Store) put(ctx context.Context, key string, part []byte) error {
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true, SendContentMd5: true}
	o.SetMatchETagExcept("*")
	_, err := s.client.PutObject(ctx, s.bucket, object(key), bytes.NewReader(part), int64(len(part)), o)
	switch {
	case err == nil:
		return nil
	case status(err) == http.StatusInsufficientStorage:
		return artifact.ErrFull
	case status(err) != http.StatusPreconditionFailed:
		return s.failed("write to", err)
	}
	stored, err := s.get(ctx, key)
	if err == nil && !bytes.Equal(stored, part) {
		return artifact.ErrExists
	}
	return err
}

// Get implements artifact.Store.
func (s *Store) Get(ctx context.Context, key string) (part []byte, err error) {
	err = artifact.Repeat(ctx, s.timeout, func(ctx context.Context) error {
		part, err = s.get(ctx, key)
		return err
	})
	return part, err
}

// get is one attempt of Get.
func (s *Store) get(ctx context.Context, key string) ([]byte, error) {
	r, _, _, err := minio.Core{Client: s.client}.GetObject(ctx, s.bucket, object(key), minio.GetObjectOptions{})
	if status(err) == http.StatusNotFound && minio.ToErrorResponse(err).Code != minio.NoSuchBucket {
		return nil, artifact.ErrNotFound
	}
	if err != nil {
		return nil, s.failed("read of", err)
	}
	defer r.Close()
	part, err := io.ReadAll(io.LimitReader(r, artifact.MaxStored+1)) // a larger object does not match its digest
	if err != nil {
		return nil, s.failed("read of", err)
	}
	return part, nil
}

// Begun implements artifact.Collected.
func (s *Store) Begun(ctx context.Context, p artifact.Parts) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	o, err := s.client.StatObject(ctx, s.bucket, prefix(p)+"0", minio.StatObjectOptions{})
	if status(err) == http.StatusNotFound {
		return time.Time{}, artifact.ErrNotFound
	}
	if err != nil {
		return time.Time{}, s.failed("read of", err)
	}
	return o.LastModified, nil
}

// Remove implements artifact.Collected. The first part is removed last: as long as it exists,
// the collector finds the upload again after a removal that failed.
func (s *Store) Remove(ctx context.Context, tenant, service, upload string) error {
	below := prefix(artifact.Parts{Tenant: tenant, Service: service, Upload: upload})
	first := below + "0"
	for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: below, Recursive: true}) {
		if o.Err != nil {
			return s.failed("list of", o.Err)
		}
		if o.Key == first {
			continue
		}
		if err := s.remove(ctx, o.Key); err != nil {
			return err
		}
	}
	return errors.Join(ctx.Err(), s.remove(ctx, first))
}

// remove removes an object if it exists.
func (s *Store) remove(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.client.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}); err != nil {
		return s.failed("removal from", err)
	}
	return nil
}

// Uploads implements artifact.Collected.
func (s *Store) Uploads(ctx context.Context, f func(artifact.Parts) error) error {
	return s.folders(ctx, "", nil, f)
}

// folders calls f for the uploads whose objects have the prefix below. in has the tokens of
// the prefix.
func (s *Store) folders(ctx context.Context, below string, in []string, f func(artifact.Parts) error) error {
	for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: below}) {
		if o.Err != nil {
			return s.failed("list of", o.Err)
		}
		name, folder := strings.CutSuffix(strings.TrimPrefix(o.Key, below), "/")
		if !folder {
			continue // not below an upload, so it is not a part
		}
		at := append(in[:len(in):len(in)], name)
		err := error(nil)
		if len(at) < 3 {
			err = s.folders(ctx, o.Key, at, f)
		} else {
			err = f(artifact.Parts{Tenant: at[0], Service: at[1], Upload: at[2]})
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
