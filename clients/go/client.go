package winch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	prefix     = "/api/v1"
	mostAnswer = 64 << 20
)

// Options of a client. The zero value of each field is the default.
type Options struct {
	// Token is sent with each request. It is in no log line and no error.
	Token string
	// Transport sends the requests. By default it is that of net/http: proxies come from HTTPS_PROXY,
	// HTTP_PROXY and NO_PROXY, and TLS trusts what the system trusts. For a private authority, or a
	// certificate of the client, clone http.DefaultTransport and set its TLSClientConfig.
	Transport http.RoundTripper
	// Timeout is how long one request may take; 30 s by default.
	Timeout time.Duration
	// Patience is for how long a request is sent again while no server answers; 30 s by default.
	Patience time.Duration
	// Log gets lines about what went wrong and was mended. None has a secret, arguments or a result.
	Log func(format string, args ...any)
	// Trace names the W3C trace of a call, for jobs enqueued in it. By default it is that of WithTrace.
	Trace func(ctx context.Context) Trace
}

// Client is a server and the right to use it. It is safe for use by many goroutines.
type Client struct {
	base      string
	shown     string
	http      *http.Client
	authorize func(http.Header) // a closure: no way of printing a client shows its token
	timeout   time.Duration
	patience  time.Duration
	logf      func(format string, args ...any)
	trace     func(ctx context.Context) Trace
}

// New makes a client of the server at this address, like https://jobs.example.com. It sends nothing yet.
func New(address string, options Options) (*Client, error) {
	parts, err := url.Parse(address)
	if err != nil || parts.Host == "" || (parts.Scheme != "http" && parts.Scheme != "https") {
		return nil, errors.New("winch: the address of a server is like https://jobs.example.com")
	}
	if parts.User != nil || parts.RawQuery != "" || parts.Fragment != "" {
		return nil, errors.New("winch: the address of a server has no user, query or fragment; use Token")
	}
	token := options.Token
	if strings.ContainsAny(token, "\r\n") {
		return nil, errors.New("winch: the token has a line break")
	}
	client := &Client{
		base:     strings.TrimRight(parts.String(), "/") + prefix,
		shown:    parts.Scheme + "://" + parts.Host,
		timeout:  or(options.Timeout, 30*time.Second),
		patience: or(options.Patience, 30*time.Second),
		logf:     options.Log,
		trace:    options.Trace,
		authorize: func(header http.Header) {
			if token != "" {
				header.Set("Authorization", "Bearer "+token)
			}
		},
	}
	if client.logf == nil {
		client.logf = func(string, ...any) {}
	}
	if client.trace == nil {
		client.trace = TraceFrom
	}
	transport := options.Transport
	if transport == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.MaxIdleConnsPerHost = 64
		transport = own
	}
	client.http = &http.Client{
		Transport: transport,
		// A redirect would send the token, and a session's key, to another place.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return client, nil
}

// FromEnv makes a client from $WINCH_SERVER and $WINCH_TOKEN.
func FromEnv() (*Client, error) {
	address := os.Getenv("WINCH_SERVER")
	if address == "" {
		return nil, errors.New("winch: set WINCH_SERVER to the address of the server, and WINCH_TOKEN")
	}
	return New(address, Options{Token: os.Getenv("WINCH_TOKEN")})
}

// Must returns the client, and panics where there is none. It is for the first line of a main function.
func Must(client *Client, err error) *Client {
	if err != nil {
		panic(err)
	}
	return client
}

// String shows the server, and no secret.
func (c *Client) String() string { return "winch.Client(" + c.shown + ")" }

// GoString is String.
func (c *Client) GoString() string { return c.String() }

func or(given, otherwise time.Duration) time.Duration {
	if given > 0 {
		return given
	}
	return otherwise
}

// call is how one request is sent.
type call struct {
	patience time.Duration // for how long it is sent again
	wait     time.Duration // how long the server may take on purpose
	limit    time.Duration // how long one try may take, where that is less than the client's timeout
}

// ask sends a request until there is an answer, and decodes it into answer, if that is not nil.
func (c *Client) ask(ctx context.Context, method, path string, body, answer any, how call) error {
	var data []byte
	if body != nil {
		var buffer bytes.Buffer
		encoder := json.NewEncoder(&buffer)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(body); err != nil {
			return fmt.Errorf("winch: what was given is no JSON: %w", err)
		}
		data = buffer.Bytes()
	}
	var pauses backoff
	until := time.Now().Add(how.patience)
	for {
		text, err := c.once(ctx, method, path, data, how)
		if err == nil {
			if answer == nil {
				return nil
			}
			if err = json.Unmarshal(text, answer); err != nil {
				return &Error{Code: "unreachable", Detail: "the answer cannot be read: " + err.Error()}
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var problem *Error
		if !errors.As(err, &problem) || !problem.isForAWhile() {
			return err
		}
		pause := problem.RetryAfter + pauses.next()
		if time.Now().Add(pause).After(until) {
			return err
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// isForAWhile tells whether the same request may be answered in another way later.
func (e *Error) isForAWhile() bool {
	switch e.Status {
	case 0, 429, 502, 503, 504:
		return true
	}
	return false
}

func (c *Client) once(
	ctx context.Context, method, path string, data []byte, how call,
) ([]byte, error) {
	limit := c.timeout
	if how.limit > 0 && how.limit < limit {
		limit = how.limit
	}
	limited, cancel := context.WithTimeout(ctx, limit+how.wait)
	defer cancel()
	var body io.Reader
	if data != nil {
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(limited, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("winch: %w", cleaned(err))
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "winch-go/"+Version)
	if data != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	c.authorize(request.Header)
	reply, err := c.http.Do(request)
	if err != nil {
		return nil, c.unreachable(cleaned(err))
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, mostAnswer))
	if err != nil {
		return nil, c.unreachable(err)
	}
	if reply.StatusCode < 300 {
		return text, nil
	}
	problem := &Error{Status: reply.StatusCode, Code: "http", Detail: http.StatusText(reply.StatusCode)}
	var known struct{ Code, Detail string }
	if json.Unmarshal(text, &known) == nil && known.Code != "" {
		problem.Code, problem.Detail = known.Code, known.Detail
	}
	if seconds, err := strconv.Atoi(reply.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		problem.RetryAfter = time.Duration(seconds) * time.Second
	}
	return nil, problem
}

func (c *Client) unreachable(cause error) error {
	detail := fmt.Sprintf("no answer from %s: %v", c.shown, cause)
	return &Error{Code: "unreachable", Detail: detail, cause: cause}
}
