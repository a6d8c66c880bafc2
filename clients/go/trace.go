package winch

import "context"

// Trace is a W3C trace context: the values of the headers traceparent and tracestate.
type Trace struct {
	Parent string
	State  string
}

type traceKey struct{}

// WithTrace is a context whose jobs carry this trace. The context of a handler carries that of its job, so
// jobs that it enqueues belong to the same trace.
func WithTrace(ctx context.Context, trace Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, trace)
}

// TraceFrom is the trace of a context; zero where it has none.
func TraceFrom(ctx context.Context) Trace {
	trace, _ := ctx.Value(traceKey{}).(Trace)
	return trace
}

func traceOf(headers map[string]string) Trace {
	return Trace{Parent: headers["traceparent"], State: headers["tracestate"]}
}

// traced adds the trace to the headers of a job, unless they name one.
func traced(headers map[string]string, trace Trace) map[string]string {
	if trace.Parent == "" || headers["traceparent"] != "" {
		return headers
	}
	all := map[string]string{"traceparent": trace.Parent}
	if trace.State != "" {
		all["tracestate"] = trace.State
	}
	for name, value := range headers {
		all[name] = value
	}
	return all
}
