{{/* Labels that select the pods of a component: (dict "root" $ "component" "worker" "pool" "default"). */}}
{{- define "winch.selector" -}}
app.kubernetes.io/name: winch
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
winch/pool: {{ . }}
{{- end }}
{{- end }}

{{- define "winch.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{/* What all pods share; `of` is a pool, web or migrate, and may have its own: (dict "root" $ "of" .). */}}
{{- define "winch.pod" -}}
automountServiceAccountToken: {{ or .isCosted .root.Values.serviceAccount.automount }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .of.nodeSelector | default .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations | default .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity | default .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.volumes | default .root.Values.volumes }}
volumes:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What all containers share. `command` takes the place of the image's entry point, whatever that is. */}}
{{- define "winch.container" -}}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: ["winch"]
{{- if or .root.Values.env .isCosted }}
env:
  {{- with .root.Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if .isCosted }}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- end }}
{{- end }}
envFrom:
  - secretRef: {name: {{ .root.Values.secretName }}}
  {{- with .root.Values.envFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- with .of.volumeMounts | default .root.Values.volumeMounts }}
volumeMounts:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
