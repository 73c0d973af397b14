#!/usr/bin/env bash
# Prepares an AWS account for cluster.yaml, once, with your credentials and the aws command:
#
#   deploy/aws-account.sh [REGION]      # and again when your address has changed
#
# It makes a security group that allows SSH from your present address, and other traffic between the cluster's machines only; and a
# role that lets the head start and stop machines of this cluster (deploy/aws-head.json), and nothing else. Workers have no role.
# Ray's defaults would allow SSH from everywhere, and let the head do anything in EC2 and S3.
set -euo pipefail
cd "$(dirname "$0")"
export AWS_DEFAULT_REGION=${1:-us-west-2} AWS_PAGER=
name=rlhf-ray

me=$(curl -fsS https://checkip.amazonaws.com)/32
find_group() {
  aws ec2 describe-security-groups --filters "Name=group-name,Values=$name" --query 'SecurityGroups[0].GroupId' --output text
}
group=$(find_group)
if [ "$group" = None ]; then
  group=$(aws ec2 create-security-group --group-name "$name" --description "SSH from its owner" --query GroupId --output text)
  aws ec2 authorize-security-group-ingress --group-id "$group" --protocol all --source-group "$group" >/dev/null
fi
for old in $(aws ec2 describe-security-groups --group-ids "$group" \
  --query 'SecurityGroups[0].IpPermissions[?FromPort==`22`].IpRanges[].CidrIp' --output text); do
  aws ec2 revoke-security-group-ingress --group-id "$group" --protocol tcp --port 22 --cidr "$old" >/dev/null
done
aws ec2 authorize-security-group-ingress --group-id "$group" --protocol tcp --port 22 --cidr "$me" >/dev/null

if ! aws iam get-role --role-name "$name-head" >/dev/null 2>&1; then
  aws iam create-role --role-name "$name-head" --assume-role-policy-document \
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}' >/dev/null
  aws iam create-instance-profile --instance-profile-name "$name-head" >/dev/null
  aws iam add-role-to-instance-profile --instance-profile-name "$name-head" --role-name "$name-head"
fi
aws iam put-role-policy --role-name "$name-head" --policy-name "$name-head" --policy-document file://aws-head.json
# Amazon's own role, needed to start spot machines; most accounts have it.
aws iam create-service-linked-role --aws-service-name spot.amazonaws.com >/dev/null 2>&1 || true

echo "Put this group into cluster.yaml, at SecurityGroupIds: $group (SSH from $me)"
